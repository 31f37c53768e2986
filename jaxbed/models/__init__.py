"""Networks and layers, in the geometry and initialisation of the published PyTorch ones."""
