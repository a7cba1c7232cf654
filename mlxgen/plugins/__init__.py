"""Everything that plugs into the generator; it imports none of this (docs/plugins.md)."""
