r"""The Colored MNIST section of "Improving Evaluation of Debiasing in Image Classification" (Lee et al., 2022), in one command.

    python scripts/reproduce_debias_cmnist.py --config.data.dir=FOLDER_OF_MNIST_IDX_FILES [--paper DIR] [--out DIR] [--jobs 4]
        [--methods erm,lff] [--config.NAME=VALUE ...]

Nine methods, each at five ratios of bias-conflicting images with five trials, 200 epochs, evaluated after every one. A method is one run of
`python -m jaxbed.main` in OUT/<method>: its 25 networks are members of one array. What starts with --config is handed to all runs. Stopped,
run the same command again to resume; a finished method (OUT/<method>/done) is not run again. In the end come, and lie in OUT as CSV:

    table2.csv   unbiased test accuracy (the paper's Tables 2 and 9), epochs chosen by validation AC score
    table3.csv   of bias-conflicting images (Tables 3 and 10)
    table4.csv   means of all methods, epochs chosen by average accuracy and by AC score
    table6.csv   Kruskal-Wallis test of the methods' unbiased accuracies, for each ratio

--paper names a folder with the paper's tables (table2_table9_unbiased.csv with columns dataset, ratio_pct, method, mean, std, and
table3_table10_bias_conflicting.csv, table4_tuning_criterion.csv, table6_kruskal_wallis.csv): they are then shown beside ours, whatever the
case of their methods' names. Two means agree where they are at most two pooled standard deviations apart.
"""

import argparse
import concurrent.futures
import pathlib
import shutil
import sys
import time
from collections.abc import Iterable, Iterator

import pandas as pd

from jaxbed.stats.comparisons import per_dataset
from jaxbed.stats.reading import records
from jaxbed.stats.selection import rules
from jaxbed.system import ending
from jaxbed.tuning import launch

ROOT = pathlib.Path(__file__).resolve().parents[1]
RATIOS = ("0.5", "1", "2", "5", "20")
CHEAPER = ["--config.method.biased.stride=2", "--config.method.biased.dtype=bfloat16"]  # most of their time is the biased network's
SETTINGS = {"rebias": CHEAPER, "softcon": CHEAPER}
METHODS = {  # configs/<name>.py: its name in the paper
    "erm": "Vanilla",
    "lnl": "LNL",
    "end": "EnD",
    "hex": "HEX",
    "rebias": "ReBias",
    "softcon": "SoftCon",
    "lff": "LfF",
    "disent": "DisEnt",
    "biasensemble": "BiasEnsemble",
}
LONGEST = ("rebias", "disent", "lff", "softcon", "biasensemble")  # they start first
CRITERIA = {"avg_acc": "average_accuracy", "ac_score": "ac_score"}  # ours: the paper's
METRICS = {"accuracy": "unbiased_accuracy", "conflicting": "bias_conflicting_accuracy"}
AGREE = 2  # pooled standard deviations


def command(method: str, out: pathlib.Path, rest: list[str]) -> list[str]:
    """Python's arguments for a method's run."""
    sweep = f'--config.grid=("data.conflicting_percent={",".join(RATIOS)}",)'
    config = f"--config={ROOT / 'configs' / method}.py:colored_mnist"
    return ["-m", "jaxbed.main", config, sweep, *SETTINGS.get(method, []), *rest, f"--workdir={out / method}"]


def train(methods: list[str], out: pathlib.Path, jobs: int, rest: list[str], keep: bool) -> dict[str, float]:
    """Runs what is not done, `jobs` at a time; returns each one's seconds. Ends the program where one fails."""
    ordered = sorted(methods, key=lambda method: LONGEST.index(method) if method in LONGEST else len(LONGEST))
    left = {method: command(method, out, rest) for method in ordered if not (out / method / "done").exists()}
    seconds = {}
    for method, code, seconds[method] in launch.side_by_side(left, jobs, ROOT):
        if code:
            print(f"reproduce: {method} ended with code {code}; run the same command again to resume", file=sys.stderr)
            sys.exit(code if code > 0 else 128 - code)
        if not keep:
            shutil.rmtree(out / method / "checkpoints")
        (out / method / "done").touch()
    return seconds


def chosen(folder: pathlib.Path) -> pd.DataFrame:
    """Test scores, in percent, of one method at one ratio: columns criterion, metric, run, value; the first of tied epochs."""
    frame, found = records.load([folder]), []
    test = frame[(frame["role"] != "val") & frame["metric"].isin(METRICS)]
    for criterion in CRITERIA:
        epochs = rules.choose(frame, criterion)[["run", "epoch"]]
        found.append(test.merge(epochs, on=["run", "epoch"]).assign(criterion=criterion, value=lambda rows: 100 * rows["value"]))
    return pd.concat(found)[["criterion", "metric", "run", "value"]]


def read(methods: Iterable[str], out: pathlib.Path, jobs: int) -> pd.DataFrame:
    """The same of all methods and ratios, with columns method and ratio_pct."""
    places = [(method, ratio) for method in methods for ratio in RATIOS]
    with concurrent.futures.ProcessPoolExecutor(jobs) as processes:
        frames = processes.map(chosen, [out / method / f"conflicting_percent={ratio}" for method, ratio in places])
        parts = [
            frame.assign(method=METHODS.get(method, method), ratio_pct=float(ratio))
            for frame, (method, ratio) in zip(frames, places, strict=True)
        ]
    return pd.concat(parts, ignore_index=True)


def accuracies(scores: pd.DataFrame, metric: str, paper: pd.DataFrame | None) -> pd.DataFrame:
    """Mean and std (ddof 1) of trials for each method and ratio, by AC score; beside the paper's where given."""
    rows = scores[(scores["criterion"] == "ac_score") & (scores["metric"] == metric)]
    table = rows.groupby(["ratio_pct", "method"], sort=False)["value"].agg(["mean", "std", "count"]).reset_index()
    if paper is None:
        return table
    paper = paper[paper["dataset"] == "Colored MNIST"].rename(columns={"mean": "paper_mean", "std": "paper_std"})
    paper, keys = paper.assign(name=paper["method"].str.lower()), ["ratio_pct", "name"]
    table = table.assign(name=table["method"].str.lower()).merge(paper[[*keys, "paper_mean", "paper_std"]], on=keys, how="left")
    table = table.drop(columns="name")
    apart = (table["mean"] - table["paper_mean"]).abs() / ((table["std"] ** 2 + table["paper_std"] ** 2) / 2) ** 0.5
    return table.assign(stds_apart=apart, agrees=(apart <= AGREE).where(apart.notna()))


def criteria(scores: pd.DataFrame, paper: pd.DataFrame | None) -> pd.DataFrame:
    """Means over methods and trials, by criterion, metric and ratio; beside the paper's where given."""
    table = scores.groupby(["ratio_pct", "metric", "criterion"])["value"].mean().reset_index()
    table = table.replace({"metric": METRICS, "criterion": CRITERIA})
    if paper is None:
        return table
    paper = paper[paper["dataset"] == "Colored MNIST"].rename(columns={"value": "paper"})
    return table.merge(paper[["ratio_pct", "metric", "criterion", "paper"]], on=["ratio_pct", "metric", "criterion"], how="left")


def kruskal_wallis(scores: pd.DataFrame, paper: pd.DataFrame | None) -> pd.DataFrame:
    """H and p over the methods' unbiased accuracies, for each ratio; beside the paper's H of its MLP where given."""
    rows = scores[(scores["criterion"] == "ac_score") & (scores["metric"] == "accuracy")]
    rows = rows.rename(columns={"method": "algorithm"}).assign(dataset=rows["ratio_pct"].astype(str))
    table = per_dataset.test(rows).assign(ratio_pct=lambda found: found["dataset"].astype(float))
    table = table[["ratio_pct", "statistic", "p_chi2", "p"]]
    if paper is None:
        return table
    paper = paper[(paper["architecture"] == "MLP") & (paper["quantity"] == "kruskal_wallis_H")].rename(columns={"value": "paper_H"})
    return table.merge(paper[["ratio_pct", "paper_H"]], on="ratio_pct", how="left")


def lines(table: pd.DataFrame, methods: list[str]) -> Iterator[str]:
    """A table of accuracies for people: a line a method, a column a ratio; the paper's in brackets, ! where they disagree."""
    yield f"{'':24s}" + "".join(f"{ratio + ' %':>29s}" for ratio in RATIOS)
    for method in methods:
        cells = []
        for ratio in RATIOS:
            row = table[(table["method"] == method) & (table["ratio_pct"] == float(ratio))].iloc[0]
            paper = f" ({row['paper_mean']:.1f} ± {row['paper_std']:.1f})" if pd.notna(row.get("paper_mean")) else ""
            cells.append(f"{row['mean']:.1f} ± {row['std']:.1f}{paper}{'!' if row.get('stds_apart', 0) > AGREE else ' '}")
        yield f"{method:24s}" + "".join(f"{cell:>29s}" for cell in cells)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs" / "debias-cmnist")
    parser.add_argument("--paper", type=pathlib.Path, help="folder of the paper's tables")
    parser.add_argument("--methods", default=",".join(METHODS), help="default: all nine; any file of configs/ will do")
    parser.add_argument("--jobs", type=int, default=1, help="methods that train at the same time, on one device (default 1)")
    parser.add_argument("--delete-checkpoints", action="store_true", help="of a method once it is evaluated: 200 epochs are 5 GB or more")
    asked, rest = parser.parse_known_args(argv)
    if strange := [word for word in rest if not word.startswith("--config.")]:
        parser.error(f"{strange[0]} is unknown; settings of all runs are given as --config.NAME=VALUE")
    methods, out = asked.methods.split(","), asked.out.resolve()
    if unknown := [name for name in methods if not (ROOT / "configs" / f"{name}.py").is_file()]:
        parser.error(f"--methods {unknown[0]}: choose from {', '.join(METHODS)}, or any file of configs/")
    names = ("table2_table9_unbiased", "table3_table10_bias_conflicting", "table4_tuning_criterion", "table6_kruskal_wallis")
    papers = [pd.read_csv(asked.paper / f"{name}.csv") if asked.paper else None for name in names]  # wrong ones show now
    begun = time.monotonic()
    seconds = train(methods, out, asked.jobs, rest, not asked.delete_checkpoints)
    scores = read(methods, out, asked.jobs)
    unbiased, conflicting = (accuracies(scores, metric, paper) for metric, paper in zip(METRICS, papers, strict=False))
    tables = {"table2": unbiased, "table3": conflicting, "table4": criteria(scores, papers[2])}
    if len(methods) > 1:
        tables["table6"] = kruskal_wallis(scores, papers[3])
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False)
        shown = [METHODS.get(method, method) for method in methods]
        print(f"\n{name}")
        print("\n".join(lines(table, shown)) if name in ("table2", "table3") else table.round(4).to_string(index=False))
    print("\nseconds: " + ", ".join(f"{name} {value:.0f}" for name, value in seconds.items()) + f"; in all {time.monotonic() - begun:.0f}")
    return 0


if __name__ == "__main__":
    ending.process(main)
