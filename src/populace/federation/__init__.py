"""The folders of coordinator and sites, and who supervises them."""
