"""Variational autoencoders with private decoders: `l-dpd-vae`, `c-dpd-vae` and their baselines."""
