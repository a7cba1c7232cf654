"""Commands that describe operators and messages: show, list, docs, schema and explain."""
