"""Commands that describe operators and messages: `list`, `docs`, `schema` and `explain`."""
