"""How far DFR's head is from the exact minimiser of its loss, and from the authors' average over balanced subsets.

    python scripts/dfr_exact.py WORKDIR          of a finished run of configs/dfr.py or configs/dfr_val.py; its last epoch, first seed

The loss is Σ_i w_i CE_i + l1·|W|₁ over standardised features, w the weights by which batches are drawn; the authors' C is 1/(l1·images).
Accuracies are of every set that the run has answers for, in percent.
"""

import argparse
import pathlib

import jax
import numpy as np

from jaxbed import config
from jaxbed.evaluation import evaluate
from jaxbed.method import apply_net
from jaxbed.methods.parts.groups import Groups
from jaxbed.models import features
from jaxbed.training import plan, train
from jaxbed.training.log import Log

SUBSETS = 20  # of the authors' average
STEPS = 4000
CS = (1.0, 0.3, 0.1, 0.03, 0.01)  # of those the authors search
Head = tuple[np.ndarray, np.ndarray]  # [F, classes], [classes]


def objective(head: Head, found: np.ndarray, label: np.ndarray, weight: np.ndarray, l1: float) -> float:
    return float(-(weight * log_probabilities(head, found)[np.arange(len(label)), label]).sum() + l1 * np.abs(head[0]).sum())


def log_probabilities(head: Head, found: np.ndarray) -> np.ndarray:
    logits = found @ head[0] + head[1]
    logits = logits - logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def minimise(found: np.ndarray, label: np.ndarray, weight: np.ndarray, l1: float, classes: int) -> Head:
    """The head that minimises the loss, whose bias is not penalised: FISTA (Beck and Teboulle, 2009)."""
    kernel, bias = np.zeros((found.shape[1], classes)), np.zeros(classes)
    ahead, ahead_bias, momentum, target = kernel, bias, 1.0, np.eye(classes)[label]
    step = 1 / (0.5 * np.linalg.eigvalsh((found * weight[:, None]).T @ found)[-1] + 0.5)
    for _ in range(STEPS):
        error = weight[:, None] * (np.exp(log_probabilities((ahead, ahead_bias), found)) - target)
        moved = ahead - step * (found.T @ error)
        new = np.sign(moved) * np.maximum(np.abs(moved) - step * l1, 0), ahead_bias - step * error.sum(0)
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead, ahead_bias = (now + (momentum - 1) / following * (now - old) for now, old in zip(new, (kernel, bias), strict=True))
        (kernel, bias), momentum = new, following
    return kernel, bias


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdir", type=pathlib.Path)
    workdir = parser.parse_args().workdir
    cfg = config.load(workdir)
    last = plan.job(cfg, workdir)
    cfg, found = last.cfg, last.points
    source, classes, l1 = found[0].source, len(found[0].source.class_names), cfg.method.l1
    store = train.stores(workdir, cfg.seeds, Log(workdir))[1]
    weights = store.load(cfg.epochs, train.prepare(cfg, found, workdir).saved)
    params, stats = (jax.tree.map(lambda x: np.asarray(x[0]), weights[kind]) for kind in ("params", "stats"))
    trunk = cfg.net.make(classes, last=cfg.net.parts - 1)

    @jax.jit
    def pooled(image: jax.Array) -> jax.Array:
        return features.pooled(apply_net(trunk, params["net"], stats["net"], source.scale(image), False)[0])

    def all_pooled(images: np.ndarray) -> np.ndarray:
        return np.concatenate([np.float64(pooled(images[i : i + 256])) for i in range(0, len(images), 256)])

    train_features, label = all_pooled(source.train.image), source.train.label
    groups = Groups(cfg.method.groups, classes)
    weight = groups.weights(label, source.train.bias if cfg.method.reads_bias else None).astype(np.float64)
    weight /= weight.sum()
    mean = weight @ train_features
    deviation = np.sqrt(weight @ (train_features - mean) ** 2)
    tests = {
        name: (all_pooled(one.split.image), one.split.label) for name, one in evaluate.chosen(cfg, source).items() if one.role != "val"
    }

    def standardised(raw: np.ndarray) -> np.ndarray:
        return (raw - mean) / np.where(deviation > 0, deviation, np.inf)

    def tell(what: str, head: Head, scaled=standardised) -> None:
        accuracies = ", ".join(
            f"{name} {100 * ((scaled(raw) @ head[0] + head[1]).argmax(1) == truth).mean():.1f}" for name, (raw, truth) in tests.items()
        )
        value = objective(head, scaled(train_features), label, weight, l1)
        print(f"{what}: loss {value:.4f}, weights other than 0 {np.mean(np.abs(head[0]) > 1e-6):.0%}; {accuracies}")

    own, norm = params["retrained"], stats["retrained"]["standard"]
    scale = own["standard"]["scale"] / np.sqrt(norm["var"] + 1e-5)
    head = tuple(np.float64(own["linear"][name]) for name in ("kernel", "bias"))
    print(f"{len(label)} images, {train_features.shape[1]} features, l1 = {l1}, C = {1 / (l1 * len(label)):.3f}")
    tell("as trained", head, lambda raw: (raw - norm["mean"]) * scale + own["standard"]["bias"])
    x = standardised(train_features)
    tell("exact minimiser", minimise(x, label, weight, l1, classes))
    rng, group = np.random.default_rng(0), groups.of(label, source.train.bias)
    members = [np.flatnonzero(group == g) for g in np.unique(group)]
    least, heads = min(map(len, members)), []
    for _ in range(SUBSETS):
        rows = np.concatenate([rng.choice(own_rows, least, replace=False) for own_rows in members])
        heads.append(minimise(x[rows], label[rows], np.full(len(rows), 1 / len(rows)), l1, classes))
    tell(
        f"average of {SUBSETS} minimisers on subsets of {least} of each group", tuple(np.mean(part, 0) for part in zip(*heads, strict=True))
    )
    for c in CS:
        tell(f"exact minimiser for C = {c:g}", minimise(x, label, weight, 1 / (c * len(label)), classes))


if __name__ == "__main__":
    main()
