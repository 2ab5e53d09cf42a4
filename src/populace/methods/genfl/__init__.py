"""`genfl` and `dp-fl`: a GAN at each client, then a classifier by DP-SGD."""
