"""Parses text to located data: YAML, signatures, settings, hand-written C++ and Metal."""
