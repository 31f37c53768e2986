"""Which epoch of a run counts: named rules, functions of the records, chosen after training.

A rule takes records (see `records`) and returns one row per (algorithm, run):

    epoch         the chosen epoch
    score         what it was chosen by
    tied_epochs   how many epochs share the best score; 1 = no tie. The first of them is taken
    valid_epochs  how many epochs could have been chosen

Rows with status 'diverged' are never chosen. `apply` refuses records that hold any, so that nobody averages them unawares.
Sources: BiasBed (arXiv 2022), section 4.1 and its released code; "Improving evaluation of debiasing", AC score.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

RUN = ["algorithm", "run"]
ALLOWED = ("best_val", "ac_score", "last", "last_n:30", "oracle", "oracle_per_dataset")
CHERRY_PICKED = ("oracle", "oracle_per_dataset")
DECIMALS = 9  # means of the same numbers in another order differ near 1e-16; scores closer than 1e-9 are ties


def best_val(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The epoch with the highest accuracy on the validation split."""
    val = _validation(frame, "accuracy", "best_val")
    return _best(val.assign(score=val["value"], second=0.0))


def ac_score(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The epoch with the highest AC score, the harmonic mean of aligned and conflicting accuracy, on the validation split.

    Ties go to the epoch with the higher metric `aligned` on that split, where it was recorded, then to the earlier epoch.
    """
    val = _validation(frame, "ac_score", "ac_score")
    aligned = frame[(frame["role"] == "val") & (frame["metric"] == "aligned") & (frame["status"] == "ok")]
    aligned = aligned[[*RUN, "epoch", "value"]].rename(columns={"value": "second"})
    val = val.merge(aligned, on=[*RUN, "epoch"], how="left")
    return _best(val.assign(score=val["value"], second=val["second"].fillna(float("-inf"))))


def last(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The last evaluated epoch; score is the accuracy on the validation split there, NaN without one."""
    import pandas as pd

    good = _with_epochs(frame)
    epochs = good.groupby(RUN)["epoch"]
    chosen = pd.DataFrame({"epoch": epochs.max(), "tied_epochs": 1, "valid_epochs": epochs.nunique()}).reset_index()
    val = good[(good["role"] == "val") & (good["metric"] == "accuracy")].rename(columns={"value": "score"})
    chosen = chosen.merge(val[[*RUN, "epoch", "score"]].drop_duplicates([*RUN, "epoch"]), on=[*RUN, "epoch"], how="left")
    return chosen[[*RUN, "epoch", "score", "tied_epochs", "valid_epochs"]]


def oracle(frame: "pd.DataFrame") -> "pd.DataFrame":
    """CHERRY-PICKED: the epoch with the best mean rank over the test datasets of the run, looked up in the test accuracy itself.

    score is that mean rank (1 = best epoch on every dataset). Only epochs at which all test datasets of the run were measured count.
    It bounds what epoch selection could have gained; it grows with the number of epochs and no test is valid on it.
    """
    import pandas as pd

    good = _with_epochs(frame)
    good = good[(good["role"] != "val") & (good["metric"] == "accuracy")]
    rows = []
    for (algorithm, run), group in good.groupby(RUN):
        grid = group.pivot(index="epoch", columns="dataset", values="value").dropna()
        if grid.empty:
            raise ValueError(
                f"oracle: {algorithm!r} run {run} has no epoch at which all of its test datasets were measured; use --select last"
            )
        rank = grid.round(DECIMALS).rank(ascending=False).mean(axis=1)
        rows.append((algorithm, run, -rank))
    if not rows:
        raise ValueError("oracle: no accuracy on a test dataset; it needs metric 'accuracy' with role 'test' or 'ood'")
    long = pd.concat([rank.rename("score").reset_index().assign(algorithm=name, run=run) for name, run, rank in rows], ignore_index=True)
    chosen = _best(long.assign(second=0.0))
    return chosen.assign(score=-chosen["score"])


def oracle_per_dataset(frame: "pd.DataFrame") -> "pd.DataFrame":
    """CHERRY-PICKED, more so: each dataset at its own best epoch, as the released code of BiasBed does. One row per run and dataset."""
    good = _with_epochs(frame)
    good = good[good["metric"] == "accuracy"]
    return _best(good.assign(score=good["value"], second=0.0), [*RUN, "dataset"])


def last_n(frame: "pd.DataFrame", n: int) -> "pd.DataFrame":
    """Records averaged over the last n *evaluated* epochs of each run: one row per (algorithm, run, dataset, metric).

    `epoch` is the last of the n. n_correct and n_total are dropped (NaN): a mean of epochs is no count.
    Raises ValueError where a run has fewer than n evaluated epochs, or a score is missing at one of them.
    """
    good = _with_epochs(frame)
    if n < 1:
        raise ValueError(f"last_n:{n} averages no epoch; give n >= 1, e.g. last_n:30")
    counts = good.groupby(RUN)["epoch"].nunique()
    short = counts[counts < n]
    if len(short):
        (algorithm, run), have = short.index[0], int(short.iloc[0])
        raise ValueError(
            f"last_n:{n} needs {n} evaluated epochs, {algorithm!r} run {run} has {have}; use last_n:{int(counts.min())} or --select last"
        )
    epochs = good[[*RUN, "epoch"]].drop_duplicates().sort_values([*RUN, "epoch"]).groupby(RUN).tail(n)
    window = good.merge(epochs, on=[*RUN, "epoch"]).sort_values("epoch", kind="stable")
    cells = [*RUN, "dataset", "metric"]
    cell = window.groupby(cells, sort=False)
    gaps = cell["value"].size().reindex(good.groupby(cells, sort=False).size().index, fill_value=0)
    gaps = gaps[gaps < n]
    if len(gaps):
        algorithm, run, dataset, metric = gaps.index[0]
        raise ValueError(
            f"last_n:{n}: {metric} of {algorithm!r} run {run} on {dataset!r} was measured at {int(gaps.iloc[0])} of the last {n} "
            "epochs only; evaluate them with `jaxbed eval`, or use a smaller n"
        )
    out = cell.agg(epoch=("epoch", "max"), value=("value", "mean"), role=("role", "first")).reset_index()
    return _ordered(out.assign(n_correct=float("nan"), n_total=float("nan"), status="ok"))


def choose(frame: "pd.DataFrame", rule_text: str) -> "pd.DataFrame":
    """The table of chosen epochs for the runs that have epochs; for last_n the last of its epochs, with valid_epochs = n."""
    name, n = parse(rule_text)
    if name == "last_n":
        return last(frame).assign(valid_epochs=n)
    rules = {"best_val": best_val, "ac_score": ac_score, "last": last, "oracle": oracle, "oracle_per_dataset": oracle_per_dataset}
    return rules[name](frame)


def apply(frame: "pd.DataFrame", rule_text: str, metric: str | None = None, datasets: Sequence[str] | None = None) -> "pd.DataFrame":
    """Records with one row per (algorithm, run, dataset, metric), at the epoch(s) that the rule chooses.

    Runs without epochs pass unchanged. `metric` and `datasets` keep those alone; the rule itself sees everything.
    Raises ValueError for an unknown rule, for diverged runs, and where a score is missing at the chosen epoch though known at others.
    """
    import pandas as pd

    name, n = parse(rule_text)
    _refuse_diverged(frame)
    wanted = frame if metric is None else frame[frame["metric"] == metric]
    wanted = wanted if datasets is None else wanted[wanted["dataset"].isin(datasets)]
    given, trained = wanted[wanted["epoch"].isna()], wanted[wanted["epoch"].notna()]
    if trained.empty:
        return _ordered(given)
    if name == "last_n":
        return _ordered(pd.concat([given, last_n(trained, n)]) if len(given) else last_n(trained, n))
    chosen = choose(frame[frame["epoch"].notna()], rule_text)
    keys = [column for column in (*RUN, "dataset") if column in chosen.columns]
    picked = trained.merge(chosen[[*keys, "epoch"]], on=[*keys, "epoch"])
    cells = [*RUN, "dataset", "metric"]
    lost = trained[cells].drop_duplicates().merge(picked[cells], on=cells, how="left", indicator=True).query("_merge == 'left_only'")
    if len(lost):
        row = lost.iloc[0]
        raise ValueError(
            f"{rule_text}: {row['metric']} of {row['algorithm']!r} run {row['run']} on {row['dataset']!r} is missing at the chosen "
            f"epoch, though measured at others ({len(lost)} such case(s)); evaluate that epoch with `jaxbed eval`, or choose another rule"
        )
    return _ordered(pd.concat([given, picked]) if len(given) else picked)


def without_diverged(frame: "pd.DataFrame") -> "tuple[pd.DataFrame, list[dict]]":
    """The records less all runs that diverged, and those runs with the first epoch at which they did.

    Raises ValueError if an algorithm would vanish altogether.
    """
    dropped = diverged(frame)
    gone = frame[RUN].merge(dropped[RUN], on=RUN, how="left", indicator=True)["_merge"].eq("both").to_numpy()
    kept = frame[~gone]
    for algorithm in dropped["algorithm"].unique():
        if not (kept["algorithm"] == algorithm).any():
            raise ValueError(
                f"all runs of {algorithm!r} diverged: nothing is left to average; leave it out with --exclude {algorithm}, and report it"
            )
    return kept, dropped.to_dict("records")


def diverged(frame: "pd.DataFrame") -> "pd.DataFrame":
    """algorithm, run, epoch: the runs that diverged and the first epoch (NaN without epochs) marked so."""
    return frame[frame["status"] == "diverged"].groupby(RUN, as_index=False)["epoch"].min()


def parse(rule_text: str) -> tuple[str, int]:
    """'last_n:30' -> ('last_n', 30); 'best_val' -> ('best_val', 0). Raises ValueError, with what is allowed, for anything else."""
    name, colon, number = rule_text.partition(":")
    if name == "last_n" and number.isdecimal() and int(number) > 0:
        return name, int(number)
    if name in ALLOWED and not colon:
        return name, 0
    raise ValueError(f"unknown selection rule {rule_text!r}; allowed are {', '.join(ALLOWED)} (any number for 30)")


def _validation(frame: "pd.DataFrame", metric: str, rule: str) -> "pd.DataFrame":
    """The rows of `metric` on the validation split, one dataset per run."""
    good = _with_epochs(frame)
    val = good[(good["role"] == "val") & (good["metric"] == metric)]
    runs = good[RUN].drop_duplicates().merge(val[RUN].drop_duplicates(), on=RUN, how="left", indicator=True)
    lacking = runs[runs["_merge"] == "left_only"]
    if len(lacking):
        row = lacking.iloc[0]
        raise ValueError(
            f"{rule} needs {metric!r} on a validation split (role 'val'), {row['algorithm']!r} run {row['run']} has none "
            f"({len(lacking)} of {len(runs)} runs lack it). Evaluate one with `jaxbed eval`, or use --select last, which needs none"
        )
    several = val.groupby(RUN)["dataset"].nunique()
    if (several > 1).any():
        algorithm, run = several[several > 1].index[0]
        raise ValueError(f"{rule}: {algorithm!r} run {run} has more than one dataset with role 'val'; give the others role 'test' or 'ood'")
    return val


def _best(rows: "pd.DataFrame", keys: list[str] = RUN) -> "pd.DataFrame":
    """The row with the highest score, then the highest `second`, then the earliest epoch, in each group."""
    rows = rows.assign(score=rows["score"].round(DECIMALS), second=rows["second"].round(DECIMALS))
    top = rows["score"] == rows.groupby(keys)["score"].transform("max")
    counts = rows.assign(tied=top).groupby(keys).agg(tied_epochs=("tied", "sum"), valid_epochs=("epoch", "nunique")).reset_index()
    first = rows[top].sort_values([*keys, "second", "epoch"], ascending=[True] * len(keys) + [False, True]).drop_duplicates(keys)
    return first[[*keys, "epoch", "score"]].merge(counts, on=keys).sort_values(keys, ignore_index=True)


def _with_epochs(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The finite rows that have an epoch."""
    good = frame[(frame["status"] == "ok") & frame["epoch"].notna()]
    if good.empty:
        raise ValueError(
            "a selection rule needs rows with an epoch and status 'ok', and there is none; scores without epochs are used as they stand"
        )
    return good


def _refuse_diverged(frame: "pd.DataFrame") -> None:
    bad = diverged(frame)
    if len(bad):
        names = "; ".join(
            f"{row.algorithm!r} run {row.run}" + ("" if row.epoch != row.epoch else f" at epoch {row.epoch:g}") for row in bad.itertuples()
        )
        raise ValueError(
            f"diverged: {names}. A mean without them flatters the algorithm: use --missing drop to leave these runs out and say so"
        )


def _ordered(frame: "pd.DataFrame") -> "pd.DataFrame":
    from jaxbed.stats import records

    return frame[list(records.COLUMNS)].reset_index(drop=True)
