r"""Biases and benchmarks of a zoo of published networks, as Tables 1 and 2 of Gavrikov and Keuper (2024) have them.

    python scripts/bias_zoo.py MODELS.csv --out DIR [--measures shape_bias,spectral,critical_band,pgd] [--frost DIR]
        [--imagenet-c DIR] [--imagenet-cbar DIR] --config.data.val=DIR --config.data.cue_conflict=DIR ...

MODELS.csv has a row for each network: model, category, file (also BACKBONE+HEAD), net (a file of configs/: resnet50, vit_b16, ...; or
network:NAME), and mean and std of its input, three numbers with spaces between or one; empty: those of the config. Each network is a run of
its own in DIR/<model>, evaluated, then measured; what starts with --config is handed to all. Stopped, the same command goes on. In the end
come DIR/biases.csv and DIR/benchmarks.csv for `jaxbed correlate`.

Means are the paper's: in_distribution of val, ImageNetV2 and ReaL; robustness of A, C and C-bar; concepts of Sketch, R and stylized_16.
One with a part that was not measured is empty. Corruptions that are made here have columns of their own, and do not stand in for published
files.
"""

import argparse
import pathlib
import re
import sys

import pandas as pd

from jaxbed.evaluation import metrics
from jaxbed.stats import tables
from jaxbed.stats.reading import delimited, workdirs
from jaxbed.system import ending, files
from jaxbed.tuning import launch

ROOT = pathlib.Path(__file__).resolve().parents[1]
COLUMNS = ("model", "category", "file", "net", "mean", "std")
HANDED = ("sets", "frost", "imagenet_c", "imagenet_cbar", "epsilons")  # options of jaxbed measure
BAND = [name + threshold for threshold in ("", "_norm") for name in ("bandwidth", "centre", "sensitivity")]
BIASES = {  # column: (data set, measure)
    "shape_bias": ("cue_conflict", "shape_bias"),
    "low_freq": ("imagenet", "low_freq"),
    "high_freq": ("imagenet", "high_freq"),
    **{name: ("imagenet", name) for name in BAND},
    **{f"{name}_16": ("imagenet_16", name) for name in BAND},  # with --config.data.sixteen_of_val=True and --sets imagenet,imagenet_16
}
BENCHMARKS = {
    "imagenet": ("imagenet", "accuracy"),
    "imagenet_v2": ("imagenet_v2", "accuracy"),
    "imagenet_real": ("imagenet", "real_accuracy"),
    "imagenet_a": ("imagenet_a", "accuracy"),
    "imagenet_c": ("imagenet_c", "imagenet_c"),
    "imagenet_cbar": ("imagenet_cbar", "imagenet_cbar"),
    "imagenet_c_jax": ("imagenet", "imagenet_c_jax"),
    "imagenet_cbar_jax": ("imagenet", "imagenet_cbar_jax"),
    "mce": ("imagenet_c", "mce"),
    "imagenet_sketch": ("imagenet_sketch", "accuracy"),
    "imagenet_r": ("imagenet_r", "accuracy"),
    "stylized_16": ("stylized_16", "accuracy"),
    "adversarial": ("imagenet", "pgd_linf_0.5"),
}
MEANS = {
    "in_distribution": ("imagenet", "imagenet_v2", "imagenet_real"),
    "robustness": ("imagenet_a", "imagenet_c", "imagenet_cbar"),
    "concepts": ("imagenet_sketch", "imagenet_r", "stylized_16"),
}


def read(path: pathlib.Path) -> pd.DataFrame:
    """The networks. Raises ValueError, with the line, for what is missing or given twice."""
    models = delimited.read(path).apply(lambda column: column.str.strip())
    if missing := [name for name in COLUMNS[:4] if name not in models.columns]:
        raise ValueError(f"{path} lacks the column {missing[0]}: it has {', '.join(COLUMNS)}")
    models = models.reindex(columns=COLUMNS).fillna("")
    for line, row in models.iterrows():
        if empty := [name for name in COLUMNS[:4] if not row[name]]:
            raise ValueError(f"{path}, line {line}: {empty[0]} is empty")
        if not (ROOT / "configs" / f"{row['net'].partition(':')[0]}.py").is_file():
            raise ValueError(f"{path}, line {line}: net {row['net']!r} is no file of configs/: resnet50, vit_b16, efficientnet_lite0")
        scale(path, int(line), row)
    for name, what in ((models["model"], "model"), (models["model"].map(folder), "folder")):
        if (twice := name[name.duplicated()]).any():
            raise ValueError(f"{path}, line {twice.index[0]}: {what} {twice.iloc[0]!r} is there already: give each model one name")
    return models


def scale(path: pathlib.Path, line: int, row: pd.Series) -> list[str]:
    """The settings of a network's input."""
    given = []
    for name in ("mean", "std"):
        numbers = re.split(r"[\s;]+", row[name]) if row[name] else []
        if len(numbers) not in (0, 1, 3) or not all(re.fullmatch(r"\d*\.?\d+", number) for number in numbers):
            raise ValueError(f"{path}, line {line}: {name} {row[name]!r} must be three numbers with spaces between, or one")
        if numbers:
            given.append(f"--config.data.augment.{name}={','.join(numbers * (3 // len(numbers)))}")
    return given


def folder(model: str) -> str:
    return re.sub(r"[^\w.-]+", "_", model)


def run(*command: str) -> None:
    """Runs Python with these arguments; ends this program with the same code if it fails."""
    _, code, _ = next(launch.side_by_side({"": list(command)}, 1, ROOT))
    if code:
        print(f"bias_zoo: stopped with code {code}; run the same command again to resume", file=sys.stderr)
        sys.exit(code if code > 0 else 128 - code)


def numbers(workdir: pathlib.Path) -> pd.Series:
    """{(data set, measure): value} of a network."""
    frame = pd.concat([metrics.scores(workdir), pd.read_csv(workdir / workdirs.MEASURES)])
    return frame.drop_duplicates(["dataset", "metric"], keep="last").set_index(["dataset", "metric"])["value"]


def rows(models: pd.DataFrame, out: pathlib.Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Biases, and benchmarks in percent, of all networks; what was not measured is empty."""
    biases, benchmarks = [], []
    for row in models.itertuples():
        value = numbers(out / folder(row.model))
        biases.append({"model": row.model, "category": row.category, **{name: value.get(place) for name, place in BIASES.items()}})
        scored = {
            name: value.get(place) * (1 if "mce" in name else 100) if place in value.index else None for name, place in BENCHMARKS.items()
        }
        for name, parts in MEANS.items():
            given = [scored[part] for part in parts]
            scored[name] = None if None in given else sum(given) / len(given)
        benchmarks.append({"model": row.model, **scored})
    return pd.DataFrame(biases), pd.DataFrame(benchmarks)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=pathlib.Path, metavar="MODELS.csv")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--measures", default="shape_bias,spectral,critical_band,pgd", help="as of jaxbed measure")
    for name in HANDED:
        parser.add_argument(f"--{name.replace('_', '-')}", default="", help="as of jaxbed measure")
    asked, rest = parser.parse_known_args(argv)
    if strange := [word for word in rest if not word.startswith("--config.")]:
        parser.error(f"{strange[0]} is unknown; settings of all runs are given as --config.NAME=VALUE")
    models, out = read(asked.models), asked.out.resolve()
    handed = [word for name in HANDED if getattr(asked, name) for word in (f"--{name.replace('_', '-')}", getattr(asked, name))]
    for line, row in models.iterrows():
        print(f"\n== {row['model']}", flush=True)
        workdir = out / folder(row["model"])
        weights = "+".join(str((asked.models.parent / part).resolve()) for part in row["file"].split("+"))
        given = [f"--config.name={row['model']}", f"--config.init_from={weights}", *scale(asked.models, int(line), row), *rest]
        file, colon, network = row["net"].partition(":")
        run("-m", "jaxbed.main", f"--config={ROOT / 'configs' / file}.py{colon}{network}", *given, f"--workdir={workdir}")
        run("-m", "jaxbed.cli", "measure", str(workdir), "--measures", asked.measures, *handed)
    for name, table in zip(("biases", "benchmarks"), rows(models, out), strict=True):
        files.write(out / f"{name}.csv", tables.csv_text(table.dropna(axis=1, how="all")))
        print(f"\n{name}\n" + tables.align([list(table.columns), *(list(map(_cell, row)) for row in table.itertuples(index=False))]))
    print(
        f"\nwrote {out / 'biases.csv'} and {out / 'benchmarks.csv'}; next: jaxbed correlate {out}/biases.csv {out}/benchmarks.csv --out DIR"
    )
    return 0


def _cell(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None or value != value else f"{value:.4g}"


if __name__ == "__main__":
    ending.process(main)
