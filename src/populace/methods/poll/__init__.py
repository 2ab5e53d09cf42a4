"""`poll`: randomised answers to questions about a few columns, and a latent class model of them."""
