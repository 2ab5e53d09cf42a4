"""Local randomisers: mechanisms with two faces, `simulate` (JAX) and `release` (operating system, exact)."""
