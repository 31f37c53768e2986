"""Fast adversarial training (Wong, Rice and Kolter, 2020): one attack step for each batch, in the largest norm.

python -m jaxbed.main --config=fast_adversarial
python -m jaxbed.main --config=fast_adversarial:imagenet --config.data.train=DIR --config.data.val=DIR

On `imagenet` with the authors' settings for a radius of 4/255: 15 epochs in three phases, SGD with momentum 0.9, weight decay 1e-4 but on
normalisation layers, from scratch; expected 53.8 % at 224 px (46.2 % error). On `corrupted_cifar10` those for CIFAR-10: radius 8/255, 15
epochs, batch 128, a rate that rises to 0.2 and falls to 0, weight decay 5e-4. Elsewhere a radius of 4/255 with what all methods have there.
`jaxbed measure --measures pgd` says what it is worth: where accuracy on the attacked batches rises and PGD's falls to 0, it has overfitted
to its own attack.
"""

import dataclasses

from jaxbed.config import Train
from jaxbed.methods import fast_adversarial
from jaxbed.optim import Optim
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    cfg = datasets.build("Fast adversarial training", fast_adversarial.Config(), dataset)
    if dataset == "imagenet":
        method = dataclasses.replace(cfg.method, phases="imagenet")
        optim = Optim(lr=fast_adversarial.LR, weight_decay=1e-4, decay_norms=False)
        cfg = dataclasses.replace(cfg, method=method, optim=optim, epochs=sum(phase.epochs for phase in fast_adversarial.PHASES))
        return fast_adversarial.in_phase(cfg, fast_adversarial.PHASES[0])
    if dataset.partition(":")[0] == "corrupted_cifar10":
        rate = Optim(lr=0.2, weight_decay=5e-4, schedule="linear", milestones_epochs=(0, 7.5, 15), factors=(0.0, 1.0, 0.0))
        method = dataclasses.replace(cfg.method, epsilon=8.0, step=10.0)
        return dataclasses.replace(cfg, method=method, optim=rate, epochs=15, batch_size=128)
    return cfg
