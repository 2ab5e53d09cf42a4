"""A federation as people run it: the coordinator's folder, a site's folder, and the supervisor between them."""
