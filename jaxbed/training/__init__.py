"""Training: the loop, compiled steps, checkpoints, stages, members of an array."""
