"""The emulator's reader of Metal: a preprocessor and a scanner that keep every token."""
