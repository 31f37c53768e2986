"""DeepAugment (Hendrycks et al., 2021): what is random about its distortions of networks, drawn on the host."""
