"""Data sets: where images, labels and second cues come from, and how batches reach the device."""
