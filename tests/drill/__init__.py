"""A soak and chaos drill of a federation on loopback: `python -m tests.drill`, for maintainers."""
