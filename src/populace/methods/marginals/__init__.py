"""Methods that estimate marginals under local privacy and fit a model to them."""
