"""Attacks on what a run published."""
