"""`flaim`: federated AIM, in which every client chooses the marginal it measures."""
