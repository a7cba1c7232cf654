"""The documentation site: Sphinx's settings (``conf.py``), and its additions to the pages."""
