"""What a network leans on: how its answers change when images do ("Can Biases in ImageNet Models Explain Generalization?", Gavrikov and
Keuper, 2024).

spectral       low-pass and high-pass filters; the share of accuracy that is left
critical_band  noise of one octave at a time on grey images of low contrast; thresholds, and the channel fitted to them
"""
