"""Generative adversarial networks: `fl-gan`, `ufl-gan` and `fedavg-gan`."""
