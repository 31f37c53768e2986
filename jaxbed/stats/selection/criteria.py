"""Criteria by which epochs are chosen: a score for each epoch of each run. The rules that use them are in `rules`.

Data sets whose images have several classes have no accuracy: wherever it is asked for, MULTI_LABEL takes its place there.

A criterion takes records and returns rows algorithm, run, epoch, score (higher is better) and second, which decides among equal scores.
Rows with status 'diverged' or 'missing' are skipped.

Next to accuracy, the validation split has the accuracy on images whose bias agrees with their label (`aligned`, a), on images whose bias
does not (`conflicting`, c), and the numbers of these images. If few images are conflicting, the AC score is mostly noise: with 10 of
them, the best of 100 equal epochs shows 0.91 where 0.655 is true. A smoothed form and one from lower bounds reduce this.

Sources: BiasBed (arXiv 2022), section 4.1 and its released code; "Improving evaluation of debiasing", AC score; Wilson 1927.
"""

import pandas as pd

RUN = ["algorithm", "run"]
MULTI_LABEL = "pr_auc_weighted"
DECIMALS = 9  # means of the same numbers in another order differ near 1e-16; scores closer than 1e-9 are ties
WILSON_Z = 1.959964  # 95 %, two-sided


def best_val(frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy on the validation split."""
    return _scored(validation(with_accuracy(frame), "accuracy", "best_val"))


def ac_score(frame: pd.DataFrame) -> pd.DataFrame:
    """Harmonic mean 2ac / (a + c) on the validation split, 0 where both are 0: metric 'ac_score', or from 'aligned' and 'conflicting'.

    Among equal scores the higher `aligned` wins, if it was recorded.
    """
    good = with_epochs(frame)
    if not ((good["role"] == "val") & (good["metric"] == "ac_score")).any():
        groups = _groups(frame, "ac_score")
        return _scored(groups.assign(value=_harmonic(groups["aligned"], groups["conflicting"])), groups["aligned"])
    val = validation(frame, "ac_score", "ac_score")
    aligned = good[(good["role"] == "val") & (good["metric"] == "aligned")]
    aligned = aligned[[*RUN, "epoch", "value"]].rename(columns={"value": "second"})
    val = val.merge(aligned, on=[*RUN, "epoch"], how="left")
    return _scored(val, val["second"].fillna(float("-inf")))


def ac_smooth(frame: pd.DataFrame, window: int) -> pd.DataFrame:
    """`ac_score` averaged over `window` evaluated epochs centred at each one, fewer at the ends."""
    rows = ac_score(frame).sort_values([*RUN, "epoch"], ignore_index=True)
    smooth = rows.groupby(RUN)["score"].rolling(window, center=True, min_periods=1).mean().reset_index(drop=True)
    return _scored(rows.assign(value=smooth))


def ac_lower(frame: pd.DataFrame) -> pd.DataFrame:
    """Harmonic mean of the lower ends of Wilson's 95 % intervals of a and c: luck on few images does not win. Needs n_total."""
    groups = _groups(frame, "ac_lower", counts=True)
    low = [wilson_lower(groups[name], groups[f"n_{name}"]) for name in ("aligned", "conflicting")]
    return _scored(groups.assign(value=_harmonic(*low)))


def avg_acc(frame: pd.DataFrame) -> pd.DataFrame:
    """(correct aligned + correct conflicting) / (all aligned + all conflicting): follows the larger group. Needs n_total."""
    groups = _groups(frame, "avg_acc", counts=True)
    right = groups["aligned"] * groups["n_aligned"] + groups["conflicting"] * groups["n_conflicting"]
    return _scored(groups.assign(value=right / (groups["n_aligned"] + groups["n_conflicting"])))


def worst_group(frame: pd.DataFrame) -> pd.DataFrame:
    """Lowest accuracy of a group on the validation split: metric 'worst_group', or the minimum over the recorded groups. Often tied."""
    good = with_epochs(frame)
    val = good[good["role"] == "val"]
    if (val["metric"] == "worst_group").any():
        return _scored(validation(frame, "worst_group", "worst_group"))
    groups = val[val["metric"].isin(["aligned", "conflicting"]) | val["metric"].str.startswith("accuracy:")]
    if groups.empty:
        raise ValueError(
            "worst_group needs metric 'worst_group' or accuracies of groups (column group) on a validation split; use --select best_val"
        )
    return _scored(groups.groupby([*RUN, "epoch"], as_index=False)["value"].min())


def oracle(frame: pd.DataFrame) -> pd.DataFrame:
    """CHERRY-PICKED: minus the mean rank of the epoch over the test data sets of the run, computed from the test accuracy itself.

    -1 = best epoch on every data set. Only epochs at which all test data sets of the run were measured count. It is an upper bound for
    epoch selection, grows with the number of epochs, and no test of it is valid.
    """
    good = with_accuracy(with_epochs(frame))
    good = good[(good["role"] != "val") & (good["metric"] == "accuracy")]
    rows = []
    for (algorithm, run), group in good.groupby(RUN):
        grid = group.pivot(index="epoch", columns="dataset", values="value").dropna()
        if grid.empty:
            raise ValueError(
                f"oracle: {algorithm!r} run {run} has no epoch at which all of its test data sets were measured; use --select last"
            )
        rank = grid.round(DECIMALS).rank(ascending=False).mean(axis=1)
        rows.append((-rank).rename("value").reset_index().assign(algorithm=algorithm, run=run))
    if not rows:
        raise ValueError("oracle: no accuracy on a test data set; it needs metric 'accuracy' with role 'test' or 'ood'")
    return _scored(pd.concat(rows, ignore_index=True))


def oracle_per_dataset(frame: pd.DataFrame) -> pd.DataFrame:
    """CHERRY-PICKED even more: accuracy on each data set, one row per data set, as in the released code of BiasBed."""
    good = with_accuracy(with_epochs(frame))
    return _scored(good[good["metric"] == "accuracy"], keys=[*RUN, "dataset"])


def with_accuracy(frame: pd.DataFrame) -> pd.DataFrame:
    """The records, MULTI_LABEL being called accuracy on the data sets of which a run has no accuracy."""
    among_several = frame["metric"] == MULTI_LABEL
    if not among_several.any():
        return frame
    has_accuracy = (frame["metric"] == "accuracy").groupby([frame[name] for name in (*RUN, "dataset")]).transform("any")
    return frame.assign(metric=frame["metric"].mask(among_several & ~has_accuracy, "accuracy"))


def wilson_lower(share: pd.Series, total: pd.Series) -> pd.Series:
    """Lower end of Wilson's 95 % interval of a share of `total` images."""
    z2 = WILSON_Z**2 / total
    return ((share + z2 / 2 - WILSON_Z * (share * (1 - share) / total + z2 / total / 4) ** 0.5) / (1 + z2)).clip(lower=0)


def with_epochs(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that are finite and have an epoch."""
    good = frame[frame["status"].isin(["ok", "truncated"]) & frame["epoch"].notna()]
    if good.empty:
        raise ValueError(
            "a selection rule needs rows with an epoch and status 'ok', but there is none; scores without epochs are used as they are"
        )
    return good


def validation(frame: pd.DataFrame, metric: str, rule: str) -> pd.DataFrame:
    """The rows of `metric` on the validation split, one data set per run. Raises ValueError if a run has none or several."""
    good = with_epochs(frame)
    val = good[(good["role"] == "val") & (good["metric"] == metric)]
    runs = good[RUN].drop_duplicates().merge(val[RUN].drop_duplicates(), on=RUN, how="left", indicator=True)
    lacking = runs[runs["_merge"] == "left_only"]
    if len(lacking):
        row = lacking.iloc[0]
        raise ValueError(
            f"{rule} needs {metric!r} on a validation split (role 'val'), but {row['algorithm']!r} run {row['run']} has none "
            f"({len(lacking)} of {len(runs)} runs lack it). Where eval.sets leaves out that of a workdir, give its training command again "
            "with it among --config.eval.sets, which answers it; or use --select last, which needs none"
        )
    several = val.groupby(RUN)["dataset"].nunique()
    if (several > 1).any():
        algorithm, run = several[several > 1].index[0]
        raise ValueError(f"{rule}: {algorithm!r} run {run} has several data sets with role 'val'; give the others role 'test' or 'ood'")
    return val


def _groups(frame: pd.DataFrame, rule: str, counts: bool = False) -> pd.DataFrame:
    """algorithm, run, epoch, aligned, conflicting (fractions), n_aligned, n_conflicting on the validation split, where both are known."""
    parts = []
    rows = {name: validation(frame, name, rule)[[*RUN, "epoch", "value", "n_total"]] for name in ("aligned", "conflicting")}
    scale = (
        100 if any((part["value"] > 1).any() for part in rows.values()) else 1
    )  # common to both: 0.9 % of conflicting images is not a fraction
    for name, part in rows.items():
        part = part.assign(value=part["value"] / scale)
        if counts and part["n_total"].isna().any():
            raise ValueError(
                f"{rule} needs n_total, the number of images, in the rows of {name!r} on the validation split; or use ac_score"
            )
        parts.append(part.rename(columns={"value": name, "n_total": f"n_{name}"}))
    return parts[0].merge(parts[1], on=[*RUN, "epoch"])


def _harmonic(a: pd.Series, c: pd.Series) -> pd.Series:
    return (2 * a * c / (a + c).where(a + c > 0)).fillna(0.0)


def _scored(rows: pd.DataFrame, second: pd.Series | float = 0.0, keys: list[str] = RUN) -> pd.DataFrame:
    scored = rows.assign(score=rows["value"].round(DECIMALS), second=second)
    return scored.assign(second=scored["second"].round(DECIMALS))[[*keys, "epoch", "score", "second"]]
