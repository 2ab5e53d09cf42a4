"""The papers: one file per method, and the interface they share."""
