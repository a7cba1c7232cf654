"""Renders resolved operators as text: C++, Metal, Python, CMake."""
