"""The documentation site: Sphinx's settings (``conf.py``), and what it adds to the pages."""
