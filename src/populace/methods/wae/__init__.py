"""Wasserstein autoencoders trained from randomised gradients: `dp-fed-wae` and `fedsel-wae`."""
