"""Quality and leakage of synthetic data, as arithmetic on tables, arrays and callables; no method is imported."""
