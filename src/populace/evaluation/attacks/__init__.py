"""What synthetic rows leak, as far as these attacks can tell: membership, attributes, nearness to the rows trained on."""
