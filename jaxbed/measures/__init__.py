"""What a network leans on: how its answers change when images do ("Can Biases in ImageNet Models Explain Generalization?", Gavrikov and
Keuper, 2024).

main            `jaxbed measure`
conditions      named changes of images, and what each measure needs of them
answering       what all seeds answer under each condition; the files of answers
scores          from answers to numbers
table           measures.csv, what is printed, and the table of runs
report          a page and figures of what was measured; figures draws them
shape_votes     answers that name the shape or the texture, of each class
spectral        low-pass and high-pass filters; the share of accuracy that is left
corruption      what a corruption is, and what they share
imagenet_c      noise and colour, and the table; with imagenet_c_blur, imagenet_c_warp (glass, elastic), imagenet_c_weather, jpeg
imagenet_cbar   ten procedural corruptions
corruption_error   mCE, from errors on corruptions; baselines: whose errors it divides by
critical_band   noise of one octave at a time on grey images of low contrast; thresholds, and the channel fitted to them
"""
