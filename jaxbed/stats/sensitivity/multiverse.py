"""Multiverse analysis: would the conclusion hold under other defensible choices?

A specification is a selection rule x a set of runs x a set of data sets x a test.

Source: Steegen et al., "Increasing transparency through a multiverse analysis", 2016.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
import scipy  # loads scipy.stats at its first use, which takes half a second

from jaxbed.stats import tables
from jaxbed.stats.comparisons import pairwise, permutation, ranks
from jaxbed.stats.options import Options
from jaxbed.stats.selection import rules
from jaxbed.stats.sensitivity import leave_one_out
from jaxbed.stats.sensitivity.leave_one_out import PAIR, Test

DRAWS = 20_000
RULES = ("best_val", "last")  # next to the rule of the analysis, and last_n


def analyse(
    frame: pd.DataFrame,
    selected: pd.DataFrame,
    options: Options,
    sets: Mapping[str, Sequence[str]],
    suspects: Iterable[tuple[str, int]],
    last: pd.DataFrame | None,
    families: Mapping[str, str],
) -> dict:
    """The table of all specifications, how often each pair differs, the choices that were varied, and what was left out.

    A test that cannot reject on so few data sets, whatever the scores, is not a specification: `left_out` names it, with its count.

    `selected`: scores as selected in this analysis; `sets`: named sets of data sets; `suspects`: runs that the audit doubts; `last`: the
    same runs averaged over their last epochs. Selection rules are varied if epochs are known, and only rules that can be applied.
    """
    logging.getLogger(__name__).info("multiverse analysis")
    algorithms, sign = selected["algorithm"].unique().tolist(), -1 if options.lower else 1
    specifications: list[tuple[dict, pd.DataFrame]] = []
    varied: dict[str, list[str]] = {"selection": [], "runs": [], "datasets": list(sets)}
    for rule, scores in _selections(frame, selected, options, last).items():
        varied["selection"].append(rule)
        for policy, rows in _run_policies(scores, set(suspects)).items():
            varied["runs"] = list(dict.fromkeys([*varied["runs"], policy]))
            matrix = sign * tables.matrix(tables.summary(rows)) if len(rows) else pd.DataFrame()
            for name, datasets in sets.items():
                if set(datasets) <= set(matrix.columns) and set(algorithms) <= set(matrix.index):
                    part = matrix.loc[algorithms, list(datasets)]
                    if part.shape[1] > 1 and part.notna().all(axis=None):
                        specifications.append(({"selection": rule, "runs": policy, "datasets": name}, part))
    functions = tests(options, len(algorithms), families)
    smallest_p = partial(_smallest_p, families=families)
    table = table_of(specifications, functions, options.alpha, smallest_p).dropna(subset="p")
    floors = [(name, matrix.shape[1], p) for _, matrix in specifications for name, p in smallest_p(matrix).items() if name in functions]
    lost = Counter(floor for floor in floors if floor[2] >= options.alpha)
    return {
        "specifications": len(floors) - lost.total(),
        "left_out": [{"test": name, "datasets": m, "smallest_p": p, "specifications": count} for (name, m, p), count in lost.items()],
        "varied": {**varied, "test": [name for name in functions if name in set(table["test"])]},
        "pairs": agreement(table),
        "table": table,
    }


def table_of(
    specifications: Iterable[tuple[dict, pd.DataFrame]],
    tests: Mapping[str, Test],
    alpha: float = 0.05,
    smallest_p: Callable[[pd.DataFrame], Mapping[str, float]] | None = None,
) -> pd.DataFrame:
    """Every pair under every specification (labels such as selection, datasets, runs; and the matrix they lead to) and every test.

    `smallest_p`: a matrix -> the smallest p that each test can give. A test that cannot reject, whatever the scores, is left out.

    One row each: the labels, test, algorithm_i, algorithm_j, rank_difference (i - j, negative = i better), p, significant. The matrices
    must list the algorithms in one order, so that a pair has one name.
    """
    frames = []
    for labels, matrix in specifications:
        floors = smallest_p(matrix) if smallest_p else {}
        able = {name: test for name, test in tests.items() if floors.get(name, 0.0) < alpha}
        frames += [leave_one_out.decisions(matrix, test, alpha).assign(**labels, test=name) for name, test in able.items()]
    if not frames:
        return pd.DataFrame(columns=["test", *PAIR, "rank_difference", "p", "significant"]).astype({"significant": bool})
    table = pd.concat(frames, ignore_index=True)
    numbers = [*PAIR, "rank_difference", "p", "significant"]
    return table[[*(name for name in table.columns if name not in numbers), *numbers]]


def agreement(table: pd.DataFrame, by: Iterable[str] = ()) -> pd.DataFrame:
    """How many rows of a multiverse find i better, and j better, of how many: one row for every pair (and value of `by`).

    Columns `by`, algorithm_i, algorithm_j, specifications, i_better, j_better, p_low, p_high.
    """
    marked = table.assign(
        i_better=table["significant"] & (table["rank_difference"] < 0), j_better=table["significant"] & (table["rank_difference"] > 0)
    )
    groups = marked.groupby([*by, *PAIR], sort=False)
    counts = {"specifications": ("p", "size"), "i_better": ("i_better", "sum"), "j_better": ("j_better", "sum")}
    return groups.agg(**counts, p_low=("p", "min"), p_high=("p", "max")).reset_index()


def tests(options: Options, n: int, families: Mapping[str, str]) -> dict[str, Callable[[pd.DataFrame], pd.DataFrame]]:
    """Name -> test: a matrix -> p [n, n]; the test against the baseline has p only for pairs with it. For two algorithms the exact tests.

    With families of data sets only the test that uses them: the others reject a true null hypothesis in a quarter to a half of all cases.
    """
    functions = {"permutation": lambda matrix: permutation.test(matrix, families=families or None, draws=DRAWS, seed=options.seed).pairs}
    if families:
        return functions
    functions["Wilcoxon + Holm"] = partial(pairwise.adjusted, name="wilcoxon")
    if n > 2:
        functions["Nemenyi"] = ranks.nemenyi
        functions |= {f"{name} + Holm": partial(pairwise.adjusted, name=name.lower()) for name in ("z", "Conover")}
        if options.baseline is not None:
            functions["z against the baseline + Holm"] = partial(pairwise.control, baseline=options.baseline)
    return functions


def _smallest_p(matrix: pd.DataFrame, families: Mapping[str, str]) -> dict[str, float]:
    """The smallest p of each of `tests` for as many algorithms and data sets without ties; Conover's can be 0."""
    n, m = matrix.shape
    blocks = len({families[name] for name in matrix}) if families else m
    z = 2 * float(scipy.stats.norm.sf((n - 1) / np.sqrt(n * (n + 1) / (6 * m))))  # one algorithm always best, the other always worst
    return {
        "permutation": permutation.smallest_p(n, blocks)["permutation_pairs"],
        "Wilcoxon + Holm": permutation.smallest_p(n, m)["wilcoxon_holm_pairs"],
        "Nemenyi": ranks.smallest_p(n, m),
        "z + Holm": n * (n - 1) / 2 * z,
        "Conover + Holm": 0.0,
        "z against the baseline + Holm": (n - 1) * z,
    }


def _selections(frame: pd.DataFrame, selected: pd.DataFrame, options: Options, last: pd.DataFrame | None) -> dict:
    if last is not None:
        return {"as given": selected, "last epochs": last[last["metric"] == options.metric]}
    epochs = frame[frame["epoch"].notna()].groupby(["algorithm", "run"])["epoch"].nunique()
    if epochs.empty:
        return {"as given": selected}
    scores_of, datasets = {options.select: selected}, selected["dataset"].unique()
    for rule in (*RULES, f"last_n:{max(2, min(30, int(epochs.min()) // 2))}"):
        if rule not in scores_of:
            try:
                scores_of[rule] = rules.apply(frame, rule, options.metric, datasets, options.ties)
            except ValueError:  # no validation split, too few epochs, an epoch not evaluated: the rule does not apply to these records
                continue
    return scores_of


def _run_policies(scores: pd.DataFrame, suspects: set) -> dict[str, pd.DataFrame]:
    """All runs; without those that the audit doubts; the same number of runs of each algorithm, the first ones."""
    policies = {"all": scores}
    doubted = [pair in suspects for pair in zip(scores["algorithm"], scores["run"], strict=True)]
    if any(doubted):
        policies["without doubtful runs"] = scores[[not doubt for doubt in doubted]]
    position = scores.groupby("algorithm")["run"].rank(method="dense")
    fewest = position.groupby(scores["algorithm"]).max().min()
    if (position > fewest).any():
        policies[f"{fewest:g} runs each"] = scores[position <= fewest]
    return policies
