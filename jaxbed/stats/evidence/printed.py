"""The paper's tables as they are printed, for LaTeX: Hendrycks et al. (2021), tables 1 to 13 but 4 and 6, which are shown beside ours."""

from pathlib import Path

import pandas as pd

from jaxbed.stats.evidence import published
from jaxbed.stats.reading import delimited

NUMBERS = tuple(range(1, 14))


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    """{"Table 1": rows of texts, ...} in order. Tables 10 and 11 are there where their files are, which nothing else needs."""
    found = {int(number): _wide(delimited.read(folder / name)) for number, name in published.FILES.items()}
    if (folder / published.SHIFTS).is_file():
        shifts = (
            published.read_table(folder / published.SHIFTS, ("dataset", "shift")).groupby("dataset", sort=False)["shift"].agg(", ".join)
        )
        found[10] = shifts.rename("shifts").reset_index()
    if all((folder / name).is_file() for name in published.NAMES_AND_SIZES):
        columns = (("dataset", "name_in_caption"), ("dataset", "split", "images"))
        found[11] = _sizes(*(published.read_table(folder / name, of) for name, of in zip(published.NAMES_AND_SIZES, columns, strict=True)))
    return {f"Table {number}": found[number] for number in sorted(found)}


def _wide(tidy: pd.DataFrame) -> pd.DataFrame:
    """A row for each model; rows and columns in the order of the file, numbers as they are written there."""
    (value,) = set(tidy.columns) - {"model", "column"}
    wide = tidy.pivot(index="model", columns="column", values=value).fillna("")
    wide = wide.loc[tidy["model"].unique(), tidy["column"].unique()]
    return wide.rename_axis(columns=None).reset_index()


def _sizes(names: pd.DataFrame, sizes: pd.DataFrame) -> pd.DataFrame:
    """A row for each data set. Where names and sizes of test sets differ in number, nothing tells which belong together."""
    names = names.assign(name_in_caption=names["name_in_caption"].str.replace(" - ", ": "))  # no minus
    joined = {
        "training images": sizes[sizes["split"] == "train"].groupby("dataset", sort=False)["images"].agg(", ".join),
        "images of test sets": sizes[sizes["split"] == "test"].groupby("dataset", sort=False)["images"].agg(", ".join),
        "names of test sets": names.groupby("dataset", sort=False)["name_in_caption"].agg(", ".join),
    }
    return pd.DataFrame(joined).reindex(sizes["dataset"].unique()).fillna("").rename_axis("dataset").reset_index()
