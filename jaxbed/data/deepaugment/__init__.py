"""DeepAugment (Hendrycks et al., 2021): how networks and the signals in them are distorted, and in what order images pass through them."""
