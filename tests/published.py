"""Numbers that papers publish, and what the statistics must make of them: facts, kept in tests/golden so that any clone can test them.

biasbed.csv          BiasBed (Kalischek et al., 2023), C.2 (every run) and Tables 2 and 3 (means, stds, trained-on marks), in percent
biasbed_nemenyi.csv  its Tables 4 and 5
stats.json           inputs and expected results of tests, computed with the packages and by hand
KRUSKAL_WALLIS       Lee et al. (2022), Table 6
"""

import atexit
import functools
import json
import pathlib
import shutil
import tempfile

import pandas as pd

GOLDEN = pathlib.Path(__file__).parent / "golden"
# data set, group, marked in the paper, in its strict set, whose training data it is, images as its scores imply
DATASETS = """ImageNet1k,source,0,1,all except Stylized_ERM,
Silhouette,texture,0,1,,160
Edge,texture,0,1,,160
Sketch,texture,0,1,,800
CueConflict,texture,0,1,,
ImageNetStylized,texture,1,0,Stylized_ERM,
ImageNetA,robustness,0,1,,
ImageNetR,robustness,0,1,,
DeepAugCAE,robustness,1,0,DeepAugCAE_ERM,
DeepAugEDSR,robustness,1,0,DeepAugEDSR_ERM,
"""
# H and p of nine methods' five trials, at 0.5, 1, 2, 5 and 20 % conflicting images
KRUSKAL_WALLIS = {
    "MLP": ((39.42, 4.12e-06), (39.55, 3.89e-06), (41.71, 1.54e-06), (39.52, 3.93e-06), (30.78, 1.54e-04)),
    "Simple Conv": ((41.42, 1.74e-06), (37.79, 8.23e-06), (40.15, 3.01e-06), (33.80, 4.41e-05), (33.56, 4.88e-05)),
}


def cases() -> list[dict]:
    """{name, input, expected} of every case of stats.json."""
    return json.loads((GOLDEN / "stats.json").read_text())


@functools.cache
def biasbed() -> pathlib.Path:
    """A folder with BiasBed's tables as files, one row per number; it lives as long as this process."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="biasbed"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    header = "dataset,group,marked_in_paper,in_paper_strict_set,training_data_of,images_implied_by_granularity\n"
    (folder / "datasets.csv").write_text(header + DATASETS)
    numbers = pd.read_csv(GOLDEN / "biasbed.csv")
    for table, of_table in numbers.groupby("table"):
        key = ["algorithm", "run", "dataset"] if of_table["run"].any() else ["algorithm", "dataset"]
        columns = []
        for number, wide in of_table.groupby("number", sort=False):
            long = wide.melt(["table", "number", "algorithm", "run"], var_name="dataset", value_name=number, ignore_index=False)
            columns.append(long.sort_index(kind="stable").set_index(key)[number])
        frame = pd.concat(columns, axis=1)
        if "in_distribution" in frame:
            frame["in_distribution"] = frame["in_distribution"].astype(int)
        frame.to_csv(folder / f"{table}.csv")
    for table, wide in pd.read_csv(GOLDEN / "biasbed_nemenyi.csv").groupby("table"):
        wide.drop(columns="table").melt("algorithm_i", var_name="algorithm_j", value_name="p").dropna().to_csv(
            folder / f"{table}.csv", index=False
        )
    return folder
