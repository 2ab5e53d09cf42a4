"""`moments`: one noisy sum of moments per client, class-conditional Gaussians at the server."""
