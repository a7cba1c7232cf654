"""From resolved operators to text: C++, Metal, Python, CMake."""
