"""The C++ that generated code uses: headers that it includes, sources compiled once per package."""
