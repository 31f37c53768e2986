"""Which epoch of a run counts: named rules, functions of the records, applied after training.

A rule is one `Rule` in the table RULES: options, messages, the audit and the tests read the table. `choose` returns one row per
(algorithm, run), or per (algorithm, run, dataset) for oracle_per_dataset:

    epoch         the chosen epoch: the first of tied ones, or the last if asked
    score         the score it was chosen by, see `criteria`
    tied_epochs   number of epochs that share the best score; 1 = no tie
    valid_epochs  number of epochs that could have been chosen

`apply` returns the scores at the chosen epochs, by default the mean over tied ones: the first of them is the least trained, the last is
arbitrary too. Diverged runs must be handled before (`failures`): `apply` raises an error for them, so they are never averaged by accident.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd

from jaxbed.stats.reading import records
from jaxbed.stats.selection import criteria, failures

RUN = ["algorithm", "run"]
TIES = ("mean", "first", "last")


class Rule(NamedTuple):
    """A way to choose epochs. A rule with a number is written NAME:N, and its criterion gets N as second argument."""

    name: str
    criterion: Callable[..., pd.DataFrame] | None  # records -> scores of epochs, see `criteria`; None: the last epochs
    example: int = 0  # a number to show in messages; 0: the rule takes none
    by_groups: bool = False  # noisy where the validation split has few images of a group
    cherry_picked: bool = False  # looks at test scores: the result must not be tested

    @property
    def text(self) -> str:
        """How the rule is written on the command line."""
        return f"{self.name}:{self.example}" if self.example else self.name


RULES = (
    Rule("best_val", criteria.best_val),
    Rule("last", None),
    Rule("last_n", None, example=30),
    Rule("ac_score", criteria.ac_score, by_groups=True),
    Rule("ac_smooth", criteria.ac_smooth, example=5, by_groups=True),
    Rule("ac_lower", criteria.ac_lower, by_groups=True),
    Rule("avg_acc", criteria.avg_acc),
    Rule("worst_group", criteria.worst_group, by_groups=True),
    Rule("oracle", criteria.oracle, cherry_picked=True),
    Rule("oracle_per_dataset", criteria.oracle_per_dataset, cherry_picked=True),
)


def choose(frame: pd.DataFrame, rule_text: str, ties: str = "first") -> pd.DataFrame:
    """The chosen epochs of the runs that have epochs; for last_n the last of its epochs, with valid_epochs = n."""
    _, n = parse(rule_text)
    if rule_of(rule_text).criterion is None:
        chosen = _last(frame)
        return chosen.assign(valid_epochs=n) if n else chosen
    return _first(_tied(frame, rule_text), last=ties == "last")


def last_n(frame: pd.DataFrame, n: int) -> pd.DataFrame:
    """Records averaged over the last n *evaluated* epochs of each run: one row per (algorithm, run, dataset, metric).

    `epoch` is the last of the n. n_correct and n_total are NaN if n > 1: a mean over epochs is not a count.
    Raises ValueError if a run has fewer than n evaluated epochs, or a score is missing at one of them.
    """
    good = criteria.with_epochs(frame)
    if n < 1:
        raise ValueError(f"last_n:{n} averages no epoch; n must be at least 1, e.g. last_n:30")
    counts = good.groupby(RUN)["epoch"].nunique()
    short = counts[counts < n]
    if len(short):
        (algorithm, run), have = short.index[0], int(short.iloc[0])
        raise ValueError(
            f"last_n:{n} needs {n} evaluated epochs, {algorithm!r} run {run} has {have}; use last_n:{int(counts.min())} or --select last"
        )
    epochs = good[[*RUN, "epoch"]].drop_duplicates().sort_values([*RUN, "epoch"]).groupby(RUN).tail(n)
    window = good.merge(epochs, on=[*RUN, "epoch"])
    cells = [*RUN, "dataset", "metric"]
    gaps = window.groupby(cells, sort=False).size().reindex(good.groupby(cells, sort=False).size().index, fill_value=0)
    gaps = gaps[gaps < n]
    if len(gaps):
        algorithm, run, dataset, metric = gaps.index[0]
        raise ValueError(
            f"last_n:{n}: {metric} of {algorithm!r} run {run} on {dataset!r} was measured at only {int(gaps.iloc[0])} of the last {n} "
            "epochs; evaluate the others with `jaxbed eval`, or use a smaller n"
        )
    averaged = _averaged(window)
    return _ordered(averaged.assign(epoch=averaged["last_epoch"]))


def apply(
    frame: pd.DataFrame, rule_text: str, metric: str | None = None, datasets: Sequence[str] | None = None, ties: str = "mean"
) -> pd.DataFrame:
    """The records at the chosen epoch(s): one row per (algorithm, run, dataset, metric).

    For tied epochs the mean (n_correct and n_total are then NaN), the first or the last. Runs without epochs are returned unchanged.
    Only `metric` and `datasets` are returned; the rule itself sees all records. Raises ValueError for an unknown rule, for diverged runs,
    and if a score is missing at a chosen epoch though known at others.
    """
    name, n = parse(rule_text)
    failures.refuse(frame)
    wanted = frame if metric is None else frame[frame["metric"] == metric]
    wanted = wanted if datasets is None else wanted[wanted["dataset"].isin(datasets)]
    given, trained = wanted[wanted["epoch"].isna()], wanted[wanted["epoch"].notna()]
    if trained.empty:
        return _ordered(given)
    if name == "last_n":
        return _ordered(pd.concat([given, last_n(trained, n)]) if len(given) else last_n(trained, n))
    with_epochs = frame[frame["epoch"].notna()]
    chosen = choose(with_epochs, rule_text, ties) if name == "last" or ties != "mean" else _tied(with_epochs, rule_text)
    keys = [column for column in (*RUN, "dataset") if column in chosen.columns]
    picked = trained.merge(chosen[[*keys, "epoch"]], on=[*keys, "epoch"])
    cells = [*RUN, "dataset", "metric"]
    wanted = trained[cells].drop_duplicates().merge(chosen[[*keys, "epoch"]], on=keys)
    lost = wanted.merge(picked[[*cells, "epoch"]], on=[*cells, "epoch"], how="left", indicator=True).query("_merge == 'left_only'")
    if len(lost):
        row = lost.iloc[0]
        raise ValueError(
            f"{rule_text}: {row['metric']} of {row['algorithm']!r} run {row['run']} on {row['dataset']!r} is missing at the chosen "
            f"epoch, though measured at others ({len(lost)} such case(s)); evaluate that epoch with `jaxbed eval`, or use another rule"
        )
    if ties == "mean" and picked.duplicated(cells).any():
        picked = _averaged(picked)
    return _ordered(pd.concat([given, picked]) if len(given) else picked)


def parse(rule_text: str) -> tuple[str, int]:
    """'last_n:30' -> ('last_n', 30); 'best_val' -> ('best_val', 0). Raises ValueError, with what is allowed, for anything else."""
    name, colon, number = rule_text.partition(":")
    rule = next((rule for rule in RULES if rule.name == name), None)
    if rule and rule.example and number.isdecimal() and int(number) > 0:
        return name, int(number)
    if rule and not rule.example and not colon:
        return name, 0
    raise ValueError(f"unknown selection rule {rule_text!r}; allowed are {allowed()} (any number after a colon)")


def rule_of(rule_text: str) -> Rule:
    """The rule of a text. Raises ValueError as `parse`."""
    name, _ = parse(rule_text)
    return next(rule for rule in RULES if rule.name == name)


def allowed() -> str:
    """All rules, as they are written."""
    return ", ".join(rule.text for rule in RULES)


def is_cherry_picked(rule_text: str | None) -> bool:
    """Whether the rule looks at test scores; None: no rule was applied."""
    return rule_text is not None and rule_of(rule_text).cherry_picked


def _last(frame: pd.DataFrame) -> pd.DataFrame:
    """The last evaluated epoch; score is the accuracy on the validation split there, NaN without one."""
    good = criteria.with_accuracy(criteria.with_epochs(frame))
    epochs = good.groupby(RUN)["epoch"]
    chosen = pd.DataFrame({"epoch": epochs.max(), "tied_epochs": 1, "valid_epochs": epochs.nunique()}).reset_index()
    val = good[(good["role"] == "val") & (good["metric"] == "accuracy")].rename(columns={"value": "score"})
    chosen = chosen.merge(val[[*RUN, "epoch", "score"]].drop_duplicates([*RUN, "epoch"]), on=[*RUN, "epoch"], how="left")
    return chosen[[*RUN, "epoch", "score", "tied_epochs", "valid_epochs"]]


def _tied(frame: pd.DataFrame, rule_text: str) -> pd.DataFrame:
    """All epochs with the highest score and, among these, the highest `second`: algorithm, run, (dataset,) epoch, score, valid_epochs."""
    criterion, (_, n) = rule_of(rule_text).criterion, parse(rule_text)
    assert criterion is not None, f"{rule_text} gives epochs no score"
    rows = criterion(frame, n) if n else criterion(frame)
    keys = [column for column in (*RUN, "dataset") if column in rows.columns]
    rows = rows.assign(valid_epochs=rows.groupby(keys)["epoch"].transform("nunique"))
    for column in ("score", "second"):
        rows = rows[rows[column] == rows.groupby(keys)[column].transform("max")]
    return rows.drop(columns="second").sort_values([*keys, "epoch"], ignore_index=True)


def _first(tied: pd.DataFrame, last: bool) -> pd.DataFrame:
    keys = [column for column in (*RUN, "dataset") if column in tied.columns]
    tied = tied.assign(tied_epochs=tied.groupby(keys)["epoch"].transform("size"))
    one = tied.drop_duplicates(keys, keep="last" if last else "first")
    return one[[*keys, "epoch", "score", "tied_epochs", "valid_epochs"]].reset_index(drop=True)


def _averaged(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over the epochs of each (algorithm, run, dataset, metric); `epoch` is the first, `last_epoch` the last of them.

    n_correct and n_total are NaN where there are several: a mean over epochs is not a count.
    """
    keys = [*RUN, "dataset", "metric"]
    number = rows.groupby(keys, sort=False).ngroup()  # cells keep the order of their first appearance
    cells = rows.assign(cell=number).sort_values(["cell", "epoch"], kind="stable").groupby(keys, sort=False)
    same = {name: (name, "first") for name in ("n_correct", "n_total", "role", "status", "family")}
    parts = {"epoch": ("epoch", "first"), "last_epoch": ("epoch", "last"), "value": ("value", "mean"), "epochs": ("value", "size")}
    out = cells.agg(**parts, **same).reset_index()
    for name in ("n_correct", "n_total"):
        out[name] = out[name].where(out["epochs"] == 1)
    return out


def _ordered(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[list(records.COLUMNS)].reset_index(drop=True)
