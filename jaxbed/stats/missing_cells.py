"""Algorithms without any run on a data set: which data sets can be compared nevertheless."""

import pandas as pd

from jaxbed.stats import names
from jaxbed.stats.options import Options


def complete(full: pd.DataFrame, wanted: list[str], options: Options) -> tuple[list[str], list[dict]]:
    """The data sets that all algorithms have, and a warning about the others. Raises ValueError unless missing scores are dropped.

    A cell without any run cannot be ranked, and leaving it out silently would compare algorithms on different data sets.
    """
    full = full.reindex(columns=wanted)
    lost = [(name, dataset) for name in full.index for dataset in wanted if full.loc[name].isna()[dataset]]
    complete = [dataset for dataset in wanted if full[dataset].notna().all()]
    if not lost:
        return complete, []
    listed = "; ".join(f"{name} on {dataset}" for name, dataset in lost[:8]) + (f"; and {len(lost) - 8} more" if len(lost) > 8 else "")
    if options.missing == "drop":
        count = len(wanted) - len(complete)
        left_out = "1 data set is" if count == 1 else f"{count} data sets are"
        text = f"no run of {listed}: {left_out} left out of the tests, except Skillings-Mack, which uses all cells"
        return complete, [{"code": "MISSING", "text": text}]
    if not complete:
        of = {name: names.listed(dataset for dataset in wanted if (name, dataset) not in lost) for name in full.index}
        apart = "; ".join(f"{name} on {datasets}" for name, datasets in of.items())
        cure = "Evaluate them on the same sets, or leave algorithms out with --exclude"
        raise ValueError(f"no data set has {options.metric} of all algorithms: {apart}. {cure}")
    raise ValueError(
        f"no run has {options.metric} for {listed}. Evaluate it; or --datasets {','.join(complete)} keeps those that all algorithms have; "
        f"or leave such data sets out with --missing drop; or leave the algorithm out with --exclude {lost[0][0]}"
    )
