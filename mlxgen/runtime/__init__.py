"""The C++ runtime of generated code: headers that it includes, and sources compiled per package."""
