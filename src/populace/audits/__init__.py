"""Audits: whether what is sent and released keeps its claim."""
