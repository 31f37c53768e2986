"""DeepAugment: what distorts the weights and the signals of image-to-image networks, whose outputs then serve as training images."""
