"""The paper's printed tables in place of answers: which of its cells hold, with binomial standard errors and without seeds.

Source: Hendrycks et al. (2021), tables 1 to 13. Misprints are found by recomputing gaps, means and counts, and by comparing names of
sets between tables; what is wrong is not used. The standard error of an mCE takes all versions of an image as fully dependent, so it is an
upper bound. mAP is no share and has none.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.measures import corruption_error
from jaxbed.stats import names
from jaxbed.stats.evidence import resampling, runs
from jaxbed.stats.evidence.study import Given, Pair
from jaxbed.stats.reading import delimited, numbers

IMAGES = {"ImageNet-C": 50_000, "ImageNet-200": 10_000, "ImageNet-R": 30_000, "ImageNet-A": 7_500, "Real Blurry Images": 1_000}
OF_SVSF = {"Hardware_Old": 8_195, "Year_2017": 10_000, "Year_2018": 10_000, "Location_France": 9_788}  # images; 10,000 of IID
BLUR = {"Defocus": "defocus_blur", "Glass": "glass_blur", "Motion": "motion_blur", "Zoom": "zoom_blur"}
CORRUPTIONS = dict(
    zip(
        "Gauss Shot Impulse Defocus Glass Motion Zoom Snow Frost Fog Bright Contrast Elastic Pixel JPEG".split(),
        corruption_error.MAIN,
        strict=True,
    )
)
ALIASES = {
    "Squeeze-and-Excitation": "SE",
    "Style Transfer Augmentation": "Style Transfer",
    "ResNeXt-101 (32 x 8d)": "ResNeXt-101 32x8d",
}
PLAIN = ("ResNet-50", "ResNet-101", "ResNet-152", "ResNeXt-101 32x4d", "ResNeXt-101 32x8d")  # controls of the line
ATTENTION = ("ResNet-50", "ResNet-101", "ResNet-152", "ResNeXt-101 32x4d")
PAIRS = [
    Pair("Larger Models", "ResNet-152", "ResNet-50"),
    Pair("Self-Attention", "ResNet-50 + CBAM", "ResNet-50"),
    *(Pair("Self-Attention", f"{model} + SE", model) for model in ATTENTION),
    *(
        Pair("Diverse Data Augmentation", f"ResNet-50 + {name}", "ResNet-50", synthetic=True)
        for name in ("Style Transfer", "AugMix", "DeepAugment", "DeepAugment + AugMix")
    ),
    Pair("Pretraining", "ResNet-50 + ImageNet-21K Pretraining", "ResNet-50"),
]
REAL = ("ImageNet-R", "Real Blurry Images", "DFR", "SVSF")
VIEWS = {"Table 4": "table4_hypotheses.csv", "Table 6": "table6_hypotheses_with_imagenet_a.csv"}
OF_R = ("ImageNet-200", "ImageNet-R", "Gap")
NEEDED = {  # columns of each table
    **dict.fromkeys(("1", "7", "13"), OF_R), "2": ("IID", *OF_SVSF), "3": ("IID", "OOD"), "9": ("ImageNet-A",),
    "5": (*BLUR, "ImageNetC_Blur_Mean", "Real_Blurry_Images"), **dict.fromkeys(("8", "12"), ("Clean", "mCE", *CORRUPTIONS)),
}  # fmt: skip
FILES = {
    "1": "table1_imagenet_r_error.csv", "2": "table2_svsf_error.csv", "3": "table3_deepfashion_remixed_map.csv",
    "5": "table5_blur_error.csv", "7": "table7_imagenet_r_error_full.csv", "8": "table8_imagenet_c.csv",
    "9": "table9_imagenet_a_accuracy.csv", "12": "table12_imagenet_c_ablation.csv", "13": "table13_imagenet_r_ablation.csv",
}  # fmt: skip
SHIFTS = "table10_shifts.csv"
NAMES_AND_SIZES = ("table11_names.csv", "table11_sizes.csv")
MISNAMED = {  # {(data set, name of a test set in table 11): (the table of its scores, its column there, what the name is)}
    ("DFR", "viewpoint - frontal"): ("3", "Viewpoint_SideBack", "frontal is the viewpoint of the training images, by the authors' code"),
    ("SVSF", "camera system - new"): ("2", "Hardware_Old", "new is the camera of the training images"),
}
Scores = dict[str, tuple[float, float]]  # {model: (score in points, standard error)}


class Published(NamedTuple):
    """What the tables give."""

    given: Given
    misprints: list[str]
    views: dict[str, pd.DataFrame]  # {"Table 4": hypothesis, benchmark, evidence}


def read(folder: Path, margins: Path | None = None) -> Published:
    """From a folder of the tables as CSV files. Raises FileNotFoundError and ValueError, which name the file."""
    tables = {number: _wide(folder / name, NEEDED[number]) for number, name in FILES.items()}
    views = {title: _view(folder / name) for title, name in VIEWS.items()}
    misprints = [*_misprints(tables), *_names(folder, tables)]
    shifted, iid = _scores(tables)
    drawn = resampling.normal({**shifted, **{f"IID of {name}": scores for name, scores in iid.items()}})
    of_shifted = {name: drawn[name] for name in shifted}
    of_iid = {name: drawn[f"IID of {name}"] for name in iid}
    notes = ["DFR: mAP is no share of images, so a printed value has no standard error: its cells are undecided"]
    optional = {"10": (SHIFTS,), "11": NAMES_AND_SIZES}
    notes += [
        f"table {number} is not shown: {name} is missing"
        for number, files in optional.items()
        for name in files
        if not (folder / name).is_file()
    ]
    given = Given(PAIRS, of_shifted, of_iid, list(PLAIN), runs.read_margins(margins, list(of_shifted)), notes, {}, REAL)
    return Published(given, misprints, views)


def canonical(model: str) -> str:
    """One spelling of a model's name for all tables."""
    parts = (" ".join(part.split()) for part in model.split("+"))
    return " + ".join(ALIASES.get(part, part) for part in parts)


def beside(cells: pd.DataFrame, view: pd.DataFrame) -> pd.DataFrame:
    """A row for each printed cell: hypothesis, benchmark, paper, ours, ours_in_paper_view, agrees (None where either is blank)."""
    ours = cells.set_index(["hypothesis", "dataset"])[["evidence", "published_view"]]
    rows = []
    for hypothesis, benchmark, printed in view.itertuples(index=False):
        symbol, seen = ours.loc[(hypothesis, benchmark)] if (hypothesis, benchmark) in ours.index else ("", "")
        agrees = seen == printed if printed and seen else None
        rows.append((hypothesis, benchmark, printed, symbol, seen, agrees))
    return pd.DataFrame(rows, columns=["hypothesis", "benchmark", "paper", "ours", "ours_in_paper_view", "agrees"])


def read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """A published table, as texts. Raises FileNotFoundError and ValueError, which name the file, for one that lacks a column."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: --tables needs the published tables, {', '.join((*FILES.values(), *VIEWS.values()))}")
    table = delimited.read(path)
    if lost := [name for name in columns if name not in table.columns]:
        raise ValueError(f"{path}: column {', '.join(map(repr, lost))} is missing, found {names.listed(table.columns)}")
    return table


def _wide(path: Path, needed: Sequence[str]) -> pd.DataFrame:
    """[models, columns] of numbers. Raises ValueError where no model has one of the needed columns."""
    table = read_table(path, ("model", "column"))
    values = [name for name in table.columns if name not in ("model", "column")]
    if len(values) != 1:
        raise ValueError(f"{path}: one column of numbers is needed beside model and column, found {names.listed(table.columns)}")
    value, models = numbers.read(table[values[0]], "value", str(path), []), table["model"].map(canonical)
    tidy = pd.DataFrame({"model": models, "column": table["column"], "value": value})
    if (repeated := tidy.duplicated(["model", "column"])).any():
        line = repeated.idxmax()
        raise ValueError(f"{path}: line {line} gives {tidy['column'][line]} of {tidy['model'][line]} again: keep one")
    wide = tidy.pivot(index="model", columns="column", values="value")
    if lost := [name for name in needed if name not in wide.columns]:
        raise ValueError(f"{path}: there is no value of {names.listed(lost)}: restore the table as it was published")
    return wide


def _view(path: Path) -> pd.DataFrame:
    columns = ["hypothesis", "benchmark", "evidence"]
    return read_table(path, columns)[columns].apply(lambda column: column.str.strip())


def _scores(tables: dict[str, pd.DataFrame]) -> tuple[dict[str, Scores], dict[str, Scores]]:
    """({benchmark: scores}, {benchmark: in-distribution scores})."""
    of_c, of_r, svsf, fashion = tables["8"], tables["7"], tables["2"], tables["3"]
    variance = sum(_error(svsf[name], images) ** 2 for name, images in OF_SVSF.items())
    shifted = {
        "ImageNet-C": _pairs(100 - of_c["mCE"], _error_of_mce(of_c)),
        "Real Blurry Images": _of_errors(tables["5"]["Real_Blurry_Images"], IMAGES["Real Blurry Images"]),
        "ImageNet-A": _of_errors(100 - tables["9"]["ImageNet-A"], IMAGES["ImageNet-A"]),
        "ImageNet-R": _of_errors(of_r["ImageNet-R"], IMAGES["ImageNet-R"]),
        "DFR": _pairs(fashion.drop(columns=["IID", "OOD"]).mean(axis=1), fashion["OOD"] * np.nan),
        "SVSF": _pairs(100 - svsf[list(OF_SVSF)].mean(axis=1), np.sqrt(variance) / len(OF_SVSF)),
    }
    clean = _of_errors(of_c["Clean"], IMAGES["ImageNet-C"])
    iid = {name: clean for name in ("ImageNet-C", "Real Blurry Images", "ImageNet-A")}
    iid["ImageNet-R"] = _of_errors(of_r["ImageNet-200"], IMAGES["ImageNet-200"])
    iid |= {"DFR": _pairs(fashion["IID"], fashion["IID"] * np.nan), "SVSF": _of_errors(svsf["IID"], 10_000)}
    return shifted, iid


def _error(percent: pd.Series, images: int) -> pd.Series:
    """Binomial standard error in points."""
    return np.sqrt(percent * (100 - percent) / images)


def _error_of_mce(of_c: pd.DataFrame) -> pd.Series:
    errors = [
        _error(of_c[name] * corruption_error.ALEXNET[key], IMAGES["ImageNet-C"]) / corruption_error.ALEXNET[key]
        for name, key in CORRUPTIONS.items()
    ]
    return sum(errors) / len(errors)


def _of_errors(errors: pd.Series, images: int) -> Scores:
    return _pairs(100 - errors, _error(errors, images))


def _pairs(score: pd.Series, error: pd.Series) -> Scores:
    return {str(model): (float(score[model]), float(error[model])) for model in score.index if not np.isnan(score[model])}


def _misprints(tables: dict[str, pd.DataFrame]) -> Iterator[str]:
    """What is printed and does not follow from what is printed next to it. Tolerances are those of rounding."""
    for number in ("1", "7", "13"):
        for model, row in tables[number].iterrows():
            if abs(gap := row["ImageNet-R"] - row["ImageNet-200"] - row["Gap"]) > 0.1501:
                right = row["ImageNet-R"] - row["ImageNet-200"]
                yield f"table {number}, {model}: the gap is {right:.1f}, printed {row['Gap']:.1f} ({-gap:+.1f})"
    for number in ("8", "12"):
        for model, row in tables[number].iterrows():
            if abs(row[list(CORRUPTIONS)].mean() - row["mCE"]) > 0.5501:
                yield f"table {number}, {model}: the mean of 15 CEs is {row[list(CORRUPTIONS)].mean():.1f}, printed mCE {row['mCE']:.1f}"
    for model, row in tables["3"].iterrows():
        if abs((mean := row.drop(["IID", "OOD"]).mean()) - row["OOD"]) > 0.1001:
            yield f"table 3, {model}: the mean of the sets is {mean:.1f}, printed {row['OOD']:.1f}"
    for model, row in tables["5"].iterrows():
        if abs((mean := row[list(BLUR)].mean()) - (printed := row["ImageNetC_Blur_Mean"])) > 1.0001:
            as_errors = [row[name] * corruption_error.ALEXNET[key] for name, key in BLUR.items()]
            cause = ""
            if abs(np.mean(as_errors) - printed) <= 1:
                listed = ", ".join(f"{value:.1f}" for value in as_errors)
                cause = f": the four are CEs; as errors they are {listed}, mean {np.mean(as_errors):.1f}"
            yield f"table 5, {model}: the mean of {', '.join(f'{row[name]:g}' for name in BLUR)} is {mean:.1f}, printed {printed:g}{cause}"


def _names(folder: Path, tables: dict[str, pd.DataFrame]) -> Iterator[str]:
    """Names of test sets in table 11, where its files are there: more than sizes, or other ones than the tables of scores have."""
    if not all((folder / name).is_file() for name in NAMES_AND_SIZES):
        return
    columns = ("name_in_caption", "split")
    named, sizes = (read_table(folder / file, ("dataset", column)) for file, column in zip(NAMES_AND_SIZES, columns, strict=True))
    for dataset, of_dataset in named.groupby("dataset", sort=False):
        printed = int(((sizes["dataset"] == dataset) & (sizes["split"] == "test")).sum())
        if printed != len(of_dataset):
            yield f"table 11, {dataset}: {printed} sizes for {len(of_dataset)} names of test sets"
        for name in of_dataset["name_in_caption"]:
            number, column, meaning = MISNAMED.get((str(dataset), name), ("", "", ""))
            if number and column in tables[number].columns:
                yield f"table 11, {dataset}: the test set {name!r} is {column} in table {number}: {meaning}"
