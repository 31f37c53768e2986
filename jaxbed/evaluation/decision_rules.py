"""From logits to an answer, where the classes asked for are not those the network has.

The 16 entry-level classes are those of Geirhos et al., in alphabetical order, each a group of ImageNet classes (sorted-wnid
indices). The default is the mean of the members' *probabilities*, as in that work and in model-vs-human; BiasBed takes the mean
of *logits*. ImageNet-A, -O and -R have 200 of the 1000 classes each; their rules look at those alone and answer in ImageNet's
numbering, as `argmax` does among all 1000. Other sets with a part of the classes name them: "among:1,3-5". On edges and silhouettes
the rule alone moves accuracy by up to 14 points: it is part of a metric's name.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


def _ranges(text: str) -> np.ndarray:
    """ "1,3-5" -> [1, 3, 4, 5]."""
    bounds = [tuple(map(int, part.split("-"))) for part in text.split(",")]
    return np.concatenate([np.arange(b[0], b[-1] + 1) for b in bounds])


SIXTEEN = {
    name: _ranges(text)
    for name, text in {
        "airplane": "404",
        "bear": "294-297",
        "bicycle": "444,671",
        "bird": "8,10-16,18-20,22-24,80-83,87-96,98-100,127-133,135-145",
        "boat": "472,554,625,814,914",
        "bottle": "440,720,737,898,899,901,907",
        "car": "436,511,817",
        "cat": "281-286",
        "chair": "423,559,765,857",
        "clock": "409,530,892",
        "dog": "152-191,193-203,205-226,228-241,243-250,252-257,259,261-263,265-268",
        "elephant": "385,386",
        "keyboard": "508,878",
        "knife": "499",
        "oven": "766",
        "truck": "555,569,656,675,717,734,864,867",
    }.items()
}

# Their 200 classes, as ImageNet's; folders of these sets are in the same order
IMAGENET_A = _ranges(
    "6,11,13,15,17,22,23,27,30,37,39,42,47,50,57,70,71,76,79,89,90,94,96,97,99,105,107,108,110,"
    "113,124,125,130,132,143,144,150,151,207,234,235,254,277,283,287,291,295,298,301,306-311,313-315,"
    "317,319,323,324,326,327,330,334-336,347,361,363,372,378,386,397,400-402,404,407,411,416,417,420,"
    "425,428,430,437,438,445,456,457,461,462,470,472,483,486,488,492,496,514,516,528,530,539,542,543,"
    "549,552,557,561,562,569,572,573,575,579,589,606,607,609,614,626,627,640-643,658,668,677,682,684,"
    "687,701,704,719,736,746,749,752,758,763,765,768,773,774,776,779,780,786,792,797,802-804,813,815,"
    "820,823,831,833,835,839,845,847,850,859,862,870,879,880,888,890,897,900,907,913,924,932-934,937,"
    "943,945,947,951,954,956,957,959,971,972,980,981,984,986-988"
)
IMAGENET_O = _ranges(
    "1,51,70,79,89,90,107,109,117,149,327,328,341,363,392,397,398,401,411,416,418-420,424,434,439,447,"
    "451,455,459,462,464,465,470,475,489,491,494,496,498,507,512,517,522,525,530,533,537,539,540,545,"
    "549-552,554,556,558,559,562,563,567,574,580,583,588,589,593,599,604,606,607,611,613,621,624,626,629,"
    "633,635,640-646,648,666,669,674,677-680,684,686-688,691,694,699,703,710,712,714,716,720,722,723,729,"
    "731,736,738,740,741,743,747,749,753,758,761,767,769,771-773,778,783,784,789,791,793-795,797,800,802,"
    "804,807,811,813,815,827,828,830,833,842-845,852-855,857-859,870,877,879,886,891,897,898,900,902,906,"
    "910,911,918,920,929,931,932,934,935,937-939,941,943,945,948-951,953-955,957,960,962,963,965,971,980,"
    "987,988,996"
)
IMAGENET_R = _ranges(
    "1,2,4,6,8,9,11,13,22,23,26,29,31,39,47,63,71,76,79,84,90,94,96,97,99,100,105,107,113,122,"
    "125,130,132,144,145,147,148,150,151,155,160-163,171,172,178,187,195,199,203,207,208,219,231,232,"
    "234,235,242,245,247,250,251,254,259,260,263,265,267,269,276,277,281,288,289,291-293,296,299,301,"
    "308-311,314,315,319,323,327,330,334,335,337,338,340,341,344,347,353,355,361,362,365-368,372,388,"
    "390,393,397,401,407,413,414,425,428,430,435,437,441,447,448,457,462,463,469-472,476,483,487,515,"
    "546,555,558,570,579,583,587,593,594,596,609,613,617,621,629,637,657,658,701,717,724,763,768,774,"
    "776,779,780,787,805,812,815,820,824,833,847,852,866,875,883,889,895,907,928,931-934,936,937,943,"
    "945,947-949,951,953,954,957,963,965,967,980,981,983,988"
)


AMONG = "among:"


def argmax(logits: jax.Array) -> jax.Array:
    """The largest logit, [B] int32; the first of equals."""
    return jnp.argmax(logits, -1).astype(jnp.int32)


def _sixteen(score: Callable[[jax.Array], jax.Array], reduce: Callable) -> Callable[[jax.Array], jax.Array]:
    def decide(logits: jax.Array) -> jax.Array:  # [B, 1000] -> [B] int32 in 0..15
        if logits.shape[-1] != 1000:
            raise ValueError(f"the 16-class decision needs the 1000 ImageNet logits, and the network has {logits.shape[-1]}")
        scores = score(logits.astype(jnp.float32))
        return argmax(jnp.stack([reduce(scores[..., members], axis=-1) for members in SIXTEEN.values()], axis=-1))

    return decide


class Rule(NamedTuple):
    """A decision rule. Written for one batch of one seed; it is compiled with the network."""

    decide: Callable[[jax.Array], jax.Array]  # logits [B, classes] -> [B] int32
    classes: tuple[str, ...] = ()  # names of what it answers; empty: the network's own
    # logits [B, classes] -> the logits [B, K] of which it answers with the largest: confidence is their largest softmax; None: it has none
    among: Callable[[jax.Array], jax.Array] | None = None


def members(classes: np.ndarray) -> Rule:
    """The rule that looks at some of ImageNet's classes alone."""

    def among(logits: jax.Array) -> jax.Array:  # [B, 1000] -> [B, K]
        if logits.shape[-1] != 1000:
            raise ValueError(f"a decision among {len(classes)} ImageNet classes needs all 1000 logits; the network has {logits.shape[-1]}")
        return logits[..., classes]

    return Rule(lambda logits: jnp.asarray(classes, jnp.int32)[argmax(among(logits))], among=among)


NAMES = tuple(SIXTEEN)
# A module that adds a row, and is imported by a configuration file, adds a rule; `jaxbed eval` takes it with --allow-module.
RULES = {
    "argmax": Rule(argmax, among=lambda logits: logits),
    "sixteen_mean_prob": Rule(_sixteen(jax.nn.softmax, jnp.mean), NAMES),
    "sixteen_mean_logit": Rule(_sixteen(lambda logits: logits, jnp.mean), NAMES),
    "sixteen_max_prob": Rule(_sixteen(jax.nn.softmax, jnp.max), NAMES),
    "sixteen_sum_prob": Rule(_sixteen(jax.nn.softmax, jnp.sum), NAMES),
    "imagenet_a": members(IMAGENET_A),
    "imagenet_o": members(IMAGENET_O),
    "imagenet_r": members(IMAGENET_R),
}


def classes(rule: str) -> dict[str, list[str]]:
    """{"classes": names of what a rule answers}; {} where these are the network's classes."""
    names = named(rule).classes
    return {"classes": list(names)} if names else {}


def among(classes: np.ndarray) -> str:
    """The name of the rule that looks at these of ImageNet's classes alone: "among:1,3-5"."""
    numbers = np.unique(classes)
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return AMONG + ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def named(rule: str) -> Rule:
    """The rule of a name. Raises ValueError for an unknown one."""
    if rule.startswith(AMONG):
        return members(_ranges(rule.removeprefix(AMONG)))
    if rule not in RULES:
        cure = "one of your own is there once its module is imported: in the configuration file, and by jaxbed eval --allow-module NAME"
        raise ValueError(f"decision rule {rule!r} is not one of {', '.join(RULES)}; {cure}")
    return RULES[rule]
