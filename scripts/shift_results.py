"""What scripts/shift_study.py shows in the end: one table of all methods, and figures of robustness."""

import pathlib
from collections.abc import Mapping, Sequence

import pandas as pd

from jaxbed.measures import figures as measured
from jaxbed.measures import robustness_figures, table
from jaxbed.measures.corruption_error import FAMILIES
from jaxbed.stats import tables
from jaxbed.stats.figures import style
from jaxbed.stats.reading import workdirs
from jaxbed.system import files


def row(workdir: pathlib.Path) -> dict[str, float]:
    """Means over seeds at the last epoch, in percent: of each set, each family of corruptions, and PGD's worst iterate."""
    frame, source = workdirs.read(workdir)
    last = frame[frame["epoch"] == frame["epoch"].max()]
    accuracy = last[last["metric"] == "accuracy"].groupby("dataset", sort=False)["value"].mean()
    roles = {name: facts["role"] for name, facts in source["sets"].items()}
    found = {name: 100 * accuracy[name] for name in sorted(accuracy.index, key=lambda name: roles[name] != "test") if roles[name] != "val"}
    cells = measured.cells(last, measured.CORRUPTION)
    means = cells.groupby("corruption")["value"].mean()
    for family, members in FAMILIES.items():
        if len(known := [name for name in members if name in means]):
            found[family] = 100 * means[known].mean()
    attacked = last.loc[last["metric"].str.fullmatch(r"pgd_linf_[\d.]+_best"), "value"]
    return found | ({"PGD": 100 * attacked.mean()} if len(attacked) else {})


def parameters(workdir: pathlib.Path) -> int:
    """Number of parameters of a run's network, as its measures of any set say."""
    return files.read_object(next((workdir / table.FOLDER).glob("*/about.json")))["parameters"]


def write(out: pathlib.Path, methods: Sequence[tuple[str, str]], seconds: Mapping[str, float], plain: Sequence[str]) -> str:
    """Writes results.csv and figures/; returns the table in words. methods: (folder, name of the algorithm); plain: names of controls."""
    rows = [
        {"method": name, **row(out / "runs" / folder), "parameters": parameters(out / "runs" / folder), "seconds": seconds[name]}
        for folder, name in methods
    ]
    results = pd.DataFrame(rows)
    files.write(out / "results.csv", tables.csv_text(results))
    scores = results.drop(columns=["parameters", "seconds"]).set_index("method")
    drawn = {"size": robustness_figures.size(results[results["method"].isin(plain)].set_index("method")["parameters"], scores)}
    (out / "figures").mkdir(exist_ok=True)
    for name, figure in drawn.items():
        style.save(figure, out / "figures", name)
    cells = [[str(name) for name in results.columns]]
    cells += [
        [of_run[0], *(f"{value:.1f}" for value in of_run[1:-2]), *(f"{value:,.0f}" for value in of_run[-2:])]
        for of_run in results.to_numpy().tolist()
    ]
    return f"Accuracy in percent, means over seeds at the last epoch\n{tables.align(cells)}\nwrote {out / 'results.csv'} and figures/"
