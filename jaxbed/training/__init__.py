"""Training: the loop, compiled steps, checkpoints, runs that come first, members of an array."""
