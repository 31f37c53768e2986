"""InfoDrop after the stem, r0 = 1.5, T = 0.03: the first phase of the paper's recipe, of which infodrop_finetune has the whole.

--config.method.variant=biasbed is BiasBed's form.

python -m jaxbed.main --config=infodrop
"""

from jaxbed.config import Train
from jaxbed.methods import infodrop
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("InfoDrop", infodrop.Config(), dataset)
