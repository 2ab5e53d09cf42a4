"""What generates: models, with no knowledge of privacy or of who was asked."""
