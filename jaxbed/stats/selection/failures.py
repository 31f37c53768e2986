"""Failed runs: diverged, truncated, or with a missing score. They are named and dropped, or counted as random guessing; never imputed.

drop   leaves them out; the mean of the other runs flatters an algorithm that often fails, so the number of runs is shown
floor  gives a failed run the score of random guessing, a sensitivity analysis
fail   raises an error, the default
"""

import pandas as pd

RUN = ["algorithm", "run"]
POLICIES = ("drop", "floor", "fail")


def apply(frame: pd.DataFrame, policy: str, chance: dict[str, float]) -> tuple[pd.DataFrame, list[dict]]:
    """The records after one of POLICIES, and the failed runs; `chance` is the score of guessing on each data set, for floor."""
    if policy == "drop":
        return drop(frame)
    if policy == "floor":
        return floor(frame, chance)
    refuse(frame)
    return frame, []


def find(frame: pd.DataFrame) -> pd.DataFrame:
    """algorithm, run, epoch, status: the diverged and truncated runs, and the first epoch that is marked so (NaN without epochs)."""
    bad = frame[frame["status"].isin(["diverged", "truncated"])]
    return bad.groupby(RUN, as_index=False).agg(epoch=("epoch", "min"), status=("status", "min"))


def drop(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[dict]]:
    """The records without failed runs and missing scores; and the failed runs, with the epoch at which they failed.

    Raises ValueError if no run of an algorithm would remain.
    """
    failed = find(frame)
    gone = frame[RUN].merge(failed[RUN], on=RUN, how="left", indicator=True)["_merge"].eq("both").to_numpy()
    kept = frame[~gone & (frame["status"] != "missing").to_numpy()]
    for algorithm in frame["algorithm"].unique():
        if not (kept["algorithm"] == algorithm).any():
            raise ValueError(
                f"all runs of {algorithm!r} diverged: no run is left to average; leave it out with --exclude {algorithm}, and report it"
            )
    return kept, failed.to_dict("records")


def floor(frame: pd.DataFrame, chance: dict[str, float]) -> tuple[pd.DataFrame, list[dict]]:
    """The records in which every test score of a failed run, and every score missing at all epochs, is `chance`, or 0 if unknown.

    Such scores have no epoch: no rule chooses among them. Also returns the failed runs. Only for scores where higher is better.
    """
    failed, cell = find(frame), [*RUN, "dataset", "metric"]
    gone = frame[RUN].merge(failed[RUN], on=RUN, how="left", indicator=True)["_merge"].eq("both").to_numpy()
    kept = frame[~gone & (frame["status"] != "missing").to_numpy()]
    lost = frame.drop_duplicates(cell).merge(kept[cell].drop_duplicates(), on=cell, how="left", indicator=True)
    lost = lost[(lost.pop("_merge") == "left_only") & (lost["role"] != "val")]
    guessed = lost["dataset"].map(chance).astype(float).fillna(0.0)
    nan = float("nan")
    lost = lost.assign(value=guessed, status="ok", epoch=nan, n_correct=nan, n_total=nan)
    return pd.concat([kept, lost], ignore_index=True), failed.to_dict("records")


def refuse(frame: pd.DataFrame) -> None:
    """Raises ValueError if a run failed or a score is marked missing."""
    bad = find(frame)
    if len(bad):
        names = "; ".join(
            f"{row.algorithm!r} run {row.run}" + ("" if row.epoch != row.epoch else f" at epoch {row.epoch:g}") for row in bad.itertuples()
        )
        raise ValueError(
            f"{'diverged' if (bad['status'] == 'diverged').all() else 'diverged or truncated'}: {names}. A mean without them flatters the "
            "algorithm: use --missing drop to leave these runs out and report it, or --missing floor to count them as guessing"
        )
    lost = frame[frame["status"] == "missing"]
    if len(lost):
        row = lost.iloc[0]
        raise ValueError(
            f"{len(lost)} missing score(s), first {row['metric']} of {row['algorithm']!r} run {row['run']} on {row['dataset']!r}; "
            "measure it, or use --missing drop"
        )


def words(failed: list[dict], policy: str) -> str:
    """The failed runs, and how they were treated, as a sentence."""
    names = ", ".join(f"{run['algorithm']} run {run['run']} ({run['status']})" for run in failed)
    if policy == "drop":
        return f"left out because they failed: {names}. The means flatter these algorithms"
    return f"counted as guessing (as 0 where --roles gives no chance) because they failed: {names}"
