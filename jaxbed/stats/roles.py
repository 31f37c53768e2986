"""What the datasets are: shifted or not, made from the same images, how many images, who trained on them. From a file beside the scores.

    dataset,role,family,size,trained_on,chance
    ImageNet1k,test,,50000,all except Stylized_ERM,0.1
    Edge,ood,drawings,160,,
    Stylized,ood,,50000,Stylized_ERM,

role        val, test (in-distribution) or ood (shifted), for all algorithms; empty keeps that of the scores
family      datasets made from the same images, no separate evidence, share one; empty: the dataset stands alone
size        images, for the check of granularity
trained_on  algorithms whose training data it is: names joined by ';', or 'all', or 'all except A;B'
chance      the score of guessing, in the unit of the scores, for --missing floor
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("dataset", "role", "family", "size", "trained_on", "chance")


def read(path: str | Path) -> "pd.DataFrame":
    """The file as columns COLUMNS, text or NaN, size and chance numbers; others in `attrs["unused_columns"]`.

    Raises ValueError for a missing or repeated dataset, no other column, an unknown role, or a size or chance that is no number.
    """
    import pandas as pd

    from jaxbed.stats import records

    raw = records.read_csv(Path(path))
    known = [name for name in COLUMNS if name in raw.columns]
    if "dataset" not in known or len(known) < 2:
        found = ", ".join(raw.columns)
        raise ValueError(f"{path}: roles need the column dataset and at least one of {', '.join(COLUMNS[1:])}; found {found}")
    text = raw[known].apply(lambda column: column.str.strip()).reindex(columns=COLUMNS)
    text = text.where(text != "")
    if text["dataset"].isna().any() or not text["dataset"].is_unique:
        raise ValueError(f"{path}: every line must name another dataset; found {', '.join(map(str, text['dataset']))}")
    strange = text["role"].dropna()[~text["role"].dropna().isin(records.ROLES)]
    if len(strange):
        raise ValueError(f"{path}: role {strange.iloc[0]!r} in line {strange.index[0]} is not one of {', '.join(records.ROLES)}")
    for name in ("size", "chance"):
        numbers = pd.to_numeric(text[name], errors="coerce")
        bad = numbers.isna() & text[name].notna()
        if bad.any():
            raise ValueError(f"{path}: {name} {text[name][bad].iloc[0]!r} in line {bad.idxmax()} is not a number; write it like 160")
        text[name] = numbers
    text.attrs["unused_columns"] = [f"{path}: {name}" for name in raw.columns if name not in COLUMNS]
    return text.reset_index(drop=True)


def apply(frame: "pd.DataFrame", roles: "pd.DataFrame") -> "pd.DataFrame":
    """The records with the roles and families of the file, and its sizes as n_total of accuracies that lack it."""
    about = roles.set_index("dataset")

    def of(column, own):
        known = about[column].dropna().to_dict()
        return [known.get(dataset, value) for dataset, value in zip(frame["dataset"], own, strict=True)]

    sized = (frame["metric"] == "accuracy") & frame["n_total"].isna()
    sizes = frame["n_total"].where(~sized, of("size", frame["n_total"]))
    return frame.assign(role=of("role", frame["role"]), family=of("family", frame["family"]), n_total=sizes)


def training_data(roles: "pd.DataFrame", algorithms: Iterable[str]) -> dict[str, list[str]]:
    """The datasets that each algorithm was trained on. The file may name algorithms that are not compared here; see `unknown`."""
    found = {name: [] for name in algorithms}
    for dataset, text in roles[["dataset", "trained_on"]].dropna().itertuples(index=False):
        but, names = _parse(text)
        for name, datasets in found.items():
            if (name in names) != but:
                datasets.append(dataset)
    return found


def unknown(roles: "pd.DataFrame", frame: "pd.DataFrame") -> list[str]:
    """Datasets and algorithms of the file that the scores do not have: misspelt, or not compared here."""
    named = {name for text in roles["trained_on"].dropna() for name in _parse(text)[1]}
    return sorted(set(roles["dataset"]) - set(frame["dataset"])) + sorted(named - set(frame["algorithm"]))


def families(frame: "pd.DataFrame", datasets: Iterable[str]) -> dict[str, str]:
    """The family of each dataset; {} where every one stands alone."""
    family = frame.drop_duplicates("dataset").set_index("dataset")["family"]
    found = {name: family[name] for name in datasets}
    return found if len(set(found.values())) < len(found) else {}


def _parse(text: str) -> tuple[bool, list[str]]:
    """Whether the names are those that did *not* train on it, and the names."""
    but = text == "all" or text.startswith("all except ")
    names = text.removeprefix("all").removeprefix(" except ") if but else text
    return but, [name.strip() for name in names.split(";") if name.strip()]
