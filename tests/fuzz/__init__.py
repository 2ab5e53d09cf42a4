"""Mutated files, messages, requests and options against everything that reads them; `python -m tests.fuzz --help`."""
