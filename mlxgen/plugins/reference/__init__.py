"""The reference of a package's operators: Markdown."""
