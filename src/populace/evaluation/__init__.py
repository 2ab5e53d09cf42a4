"""What synthetic data are worth, and what they leak. Sees tables and callables, never a protocol."""
