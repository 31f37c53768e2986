"""Facts about the data sets from a file: shifted or not, made from the same images, number of images, which algorithms trained on them.

    dataset,role,family,size,trained_on,chance
    ImageNet1k,test,,50000,all except Stylized_ERM,0.1
    Edge,ood,drawings,160,,
    Stylized,ood,,50000,Stylized_ERM,

role        val, test (in-distribution) or ood (shifted), for all algorithms; empty keeps that of the scores
family      shared by data sets made from the same images, which are not independent evidence; empty: the data set stands alone
size        number of images, for the check of granularity
trained_on  algorithms that were trained on it: names joined by ';', or 'all', or 'all except A;B'
chance      the score of random guessing, in the unit of the scores, for --missing floor
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from jaxbed.stats import names
from jaxbed.stats.reading import delimited, numbers, records

COLUMNS = ("dataset", "role", "family", "size", "trained_on", "chance")


def read(path: str | Path) -> pd.DataFrame:
    """The columns COLUMNS of the file: texts or NaN, size and chance as numbers; other columns in `attrs["unused_columns"]`.

    Raises ValueError for a missing or repeated data set, no other column, an unknown role, or a size or chance that is not a number.
    """
    raw = delimited.read(Path(path))
    raw = raw.rename(columns={header_name: name for name in COLUMNS if (header_name := names.find(name, raw.columns))})
    known = [name for name in COLUMNS if name in raw.columns]
    if "dataset" not in known or len(known) < 2:
        present = names.listed(raw.columns)
        raise ValueError(f"{path}: roles need the column dataset and at least one of {', '.join(COLUMNS[1:])}; found {present}")
    text = raw[known].apply(lambda column: column.map(names.clean)).reindex(columns=COLUMNS)
    text = text.where(text != "")
    if text["dataset"].isna().any() or not text["dataset"].is_unique:
        raise ValueError(f"{path}: every line must name a different data set; found {names.listed(text['dataset'])}")
    strange = text["role"].dropna()[~text["role"].dropna().isin(records.ROLES)]
    if len(strange):
        raise ValueError(f"{path}: role {strange.iloc[0]!r} in line {strange.index[0]} is not one of {', '.join(records.ROLES)}")
    for name in ("size", "chance"):
        text[name] = numbers.read(text[name], name, str(path), [], separator=raw.attrs["separator"])
    text.attrs["unused_columns"] = [f"{path}: {name}" for name in raw.columns if name not in COLUMNS]
    return text.reset_index(drop=True)


def apply(frame: pd.DataFrame, roles: pd.DataFrame) -> pd.DataFrame:
    """The records with the roles and families of the file, and its sizes as n_total of accuracies without one."""
    about = roles.set_index("dataset")

    def of(column: str, defaults: pd.Series) -> list:
        known = about[column].dropna().to_dict()
        return [known.get(dataset, value) for dataset, value in zip(frame["dataset"], defaults, strict=True)]

    sized = (frame["metric"] == "accuracy") & frame["n_total"].isna()
    sizes = frame["n_total"].where(~sized, of("size", frame["n_total"]))
    return frame.assign(role=of("role", frame["role"]), family=of("family", frame["family"]), n_total=sizes)


def training_data(roles: pd.DataFrame, algorithms: Iterable[str]) -> dict[str, list[str]]:
    """The data sets that each algorithm was trained on. The file may name other algorithms too, see `unknown`."""
    datasets_of: dict[str, list[str]] = {name: [] for name in algorithms}
    for dataset, text in roles[["dataset", "trained_on"]].dropna().itertuples(index=False):
        but, names = _parse(text)
        for name, datasets in datasets_of.items():
            if (name in names) != but:
                datasets.append(dataset)
    return datasets_of


def algorithms(roles: pd.DataFrame) -> list[str]:
    """The algorithms that the file names, each once."""
    return list(dict.fromkeys(name for text in roles["trained_on"].dropna() for name in _parse(text)[1]))


def renamed(roles: pd.DataFrame, algorithms: Mapping[str, str], datasets: Mapping[str, str]) -> pd.DataFrame:
    """The roles with the new names of {old: new}. Raises ValueError if two data sets get one name."""
    renamed_roles = roles.assign(dataset=roles["dataset"].replace(datasets))
    if not renamed_roles["dataset"].is_unique:
        name = renamed_roles["dataset"][renamed_roles["dataset"].duplicated()].iloc[0]
        raise ValueError(f"--rename: two data sets of the roles would both be named {names.quoted(name)}; delete one of the two lines")

    def trained_on(text: object) -> object:
        if not isinstance(text, str):  # NaN
            return text
        but, listed_names = _parse(text)
        listed = ";".join(algorithms.get(name, name) for name in listed_names)
        return (f"all except {listed}" if listed else "all") if but else listed

    renamed_roles["trained_on"] = renamed_roles["trained_on"].map(trained_on)
    renamed_roles.attrs = roles.attrs
    return renamed_roles


def unknown(roles: pd.DataFrame, frame: pd.DataFrame) -> list[str]:
    """Data sets and algorithms of the file that do not occur in the scores: misspelt, or not compared here."""
    return sorted(set(roles["dataset"]) - set(frame["dataset"])) + sorted(set(algorithms(roles)) - set(frame["algorithm"]))


def families(frame: pd.DataFrame, datasets: Iterable[str]) -> dict[str, str]:
    """The family of each data set; {} if every data set stands alone."""
    family = frame.drop_duplicates("dataset").set_index("dataset")["family"]
    family_of = {name: family[name] for name in datasets}
    return family_of if len(set(family_of.values())) < len(family_of) else {}


def _parse(text: str) -> tuple[bool, list[str]]:
    """Whether the names are those that did *not* train on it, and the names."""
    but = text == "all" or text.startswith("all except ")
    names = text.removeprefix("all").removeprefix(" except ") if but else text
    return but, [name.strip() for name in names.split(";") if name.strip()]
