"""The commands check, generate, show, list, diff, and the files that they write."""
