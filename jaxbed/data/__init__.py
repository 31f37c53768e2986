"""Data sets: where images, labels and biases come from, and how batches reach the device."""
