"""Metal's rules for kernel files, which a C++ compiler cannot check."""
