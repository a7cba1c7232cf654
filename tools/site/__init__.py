"""The documentation site: Sphinx's settings (``conf.py``) and the content that it adds to pages."""
