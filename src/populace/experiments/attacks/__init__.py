"""Attacks that need runs of their own: shadow runs with and without their targets."""
