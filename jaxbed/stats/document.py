"""The analysis as a document for `html.page`: verdict, sections of text, tables and figures, warnings, facts. Nothing is computed here."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxbed.stats import report, select, tables
from jaxbed.stats.ranks import FEW_BLOCKS

if TYPE_CHECKING:
    import pandas as pd

    from jaxbed.stats.analysis import Analysis
    from jaxbed.stats.figures import Figure
    from jaxbed.stats.html import Document, Section

PAIR = {"algorithm_i": "i", "algorithm_j": "j"}


def build(analysis: "Analysis", drawn: "Sequence[Figure]", facts: dict) -> "Document":
    """`drawn` are the figures of figures.draw; `facts` as files.write has them."""
    from jaxbed.stats import html

    results, figures = analysis.results, {figure.name: figure for figure in drawn}
    sections = [_scores(analysis, figures)]
    if results["friedman"]:
        sections += [_new_datasets(analysis, figures), _bradley_terry(results)]
    if results["missing_cells"]:
        sections += [_missing_cells(results)]
    if results["these_datasets"]:
        sections += [_these_datasets(results)]
    if results["friedman"]:
        sections += [_firmness(results, figures)]
    if analysis.chosen is not None:
        sections += [_epochs(analysis, figures)]
    told = {"command": report.command(facts, results["options"]), "seed": str(results["seed"])}
    told |= {name: ", ".join(value) if isinstance(value, list) else str(value) for name, value in facts.items()}
    told["versions"] = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    warnings = [{key: warning[key] for key in ("code", "text", "cure")} for warning in results["warnings"]]
    n, m = len(results["algorithms"]), len(results["datasets"])
    title = f"{results['metric'].capitalize()}: {n} algorithm{'s' * (n != 1)} on {m} dataset{'s' * (m != 1)}"
    return html.Document(title, results["verdict"], sections, warnings, told)


def _scores(analysis: "Analysis", figures: dict) -> "Section":
    import pandas as pd

    from jaxbed.stats import html

    results, scores = analysis.results, analysis.scores
    trained, lower = {tuple(cell) for cell in results["in_distribution"]}, results["lower_is_better"]
    grey = ["grey"] * (results["selection"]["rule"] in select.CHERRY_PICKED)
    rows = [
        {
            "algorithm": algorithm,
            **{
                dataset: html.Cell(text, " ".join([*["best"] * best, *["in-distribution"] * ((algorithm, dataset) in trained), *grey]))
                for dataset, (text, best) in cells.items()
            },
        }
        for algorithm, cells in tables.cells(scores, lower, trained).items()
    ]
    counts = (
        scores.pivot(index="algorithm", columns="dataset", values="n")
        .loc[scores["algorithm"].unique(), scores["dataset"].unique()]
        .reset_index()
    )
    text = [
        f"Mean ± std (ddof 1) over runs, {'percent' if tables.scale(scores) == 100 else 'as given'}; "
        f"{'lower' if lower else 'higher'} is better. Epoch selection: {results['selection']['text']}."
    ]
    if trained:
        text.append("Underlined cells: the algorithm was trained on that dataset; they are never marked as best.")
    found = [("Scores", pd.DataFrame(rows))] + [("Runs", counts)] * (scores["n"].nunique() > 1)
    if results["these_datasets"]:
        cells = results["these_datasets"]["intervals"]
        found.append((f"t intervals of the means, {1 - results['alpha']:.0%}", _rounded(cells)))
    return html.Section("Scores", text, found, _of(figures, "runs"))


def _new_datasets(analysis: "Analysis", figures: dict) -> "Section":
    import pandas as pd

    from jaxbed.stats import html

    results = analysis.results
    friedman, pairs = results["friedman"], results["pairs"]
    moment, classic = friedman["f_degrees_of_freedom_moment"], friedman["f_degrees_of_freedom_iman_davenport"]
    quade, degrees_of_quade = results["quade"], ", ".join(map(str, results["quade"]["f_degrees_of_freedom"]))
    few = friedman["families"] or friedman["blocks"] < FEW_BLOCKS  # approximations are rough there, and only the headline is shown
    omnibus = pd.DataFrame(
        [
            (f"permutation ({friedman['p_method']}), the headline", friedman["chi2"], "", friedman["p"]),
            ("F, d.o.f. that match the moments", friedman["f"], f"{moment[0]:.2f}, {moment[1]:.2f}", friedman["p_f_moment"]),
            ("F, Iman-Davenport", friedman["f"], f"{classic[0]}, {classic[1]}", friedman["p_f_iman_davenport"]),
            ("chi2", friedman["chi2"], str(friedman["chi2_degrees_of_freedom"]), friedman["p_chi2"]),
            ("Quade, F: datasets on which the scores differ more count more", quade["f"], degrees_of_quade, quade["p"]),
        ],
        columns=["test", "statistic", "d.o.f.", "p"],
    )[: 1 if few else None]
    ranks = pd.DataFrame(friedman["mean_ranks"].items(), columns=["algorithm", "mean rank"]).sort_values("mean rank", kind="stable")
    rough = ("p_nemenyi", "p_z_holm", "p_conover_holm") if few else ()
    p = [
        name
        for name in pairs
        if name.startswith("p_") and name not in rough and name not in ("p_z", "p_conover", "p_wilcoxon", "p_pratt", "p_sign")
    ]
    interval = [name for name in ("rank_difference_low", "rank_difference_high") if name in pairs]
    effects = ["rank_difference", *interval, "hodges_lehmann", "rank_biserial", "wins_i", "ties", "wins_j"]
    found = [
        ("Do they differ at all?", omnibus),
        ("Mean ranks, 1 = best", ranks),
        ("p-values of all pairs, adjusted", pairs[[*PAIR, *p]]),
        ("Sizes of the differences, i - j", pairs[[*PAIR, *effects]]),
        (
            "Bayesian signed rank: which is better, or neither by more than the rope",
            pairs[[*PAIR, *(name for name in pairs if name.startswith("bayes_p"))]],
        ),
    ]
    if results["baseline_comparisons"] is not None:
        against = results["baseline_comparisons"]
        columns = [*PAIR, "rank_difference", "hodges_lehmann", "p_permutation", "p_z_holm", "p_wilcoxon_holm", "p_sign_holm"]
        columns = [name for name in columns if name not in rough]
        found.insert(2, (f"All against {results['baseline']}, adjusted for these comparisons", against[columns]))
    if results["paper"]:
        published = pd.DataFrame(results["paper"]["nemenyi"]).rename_axis("p").reset_index()
        found.insert(0, (f"As published: F = {results['paper']['f']:.6f}, p = {results['paper']['p']:.4g}; Nemenyi", published))
    floors = "; ".join(f"{name.replace('_', ' ')} {p:.2g}" for name, p in results["floors"].items())
    blocks = (
        f"{friedman['blocks']} families of datasets are the blocks of the permutation test. All other tests here, the posteriors and the "
        "power take every dataset for separate evidence and are too sure: do not quote them."
        if friedman["families"]
        else "Every dataset is one block with one mean over runs for each algorithm; runs are not blocks, for they repeat what is peculiar "
        "to the dataset."
    )
    text = [
        f"{blocks} Smallest p that the tests can give here: {floors}.",
        f"A negative rank difference means that i is better; a positive shift (Hodges-Lehmann) too. Rope: {results['rope']:g}.",
    ]
    title = "Would they differ on another dataset?"
    return html.Section(title, text, [(name, _rounded(table)) for name, table in found], _of(figures, "critical_difference", "p_values"))


def _bradley_terry(results: dict) -> "Section":
    from jaxbed.stats import html

    model, pairs, n = results["bradley_terry"], results["pairs"], len(results["algorithms"])
    names = {
        "bt_p": "P(i beats j)",
        "bt_low": "95 % from",
        "bt_high": "95 % to",
        "win_low": "resampled from",
        "win_high": "resampled to",
        "bt_p_better": "i is the abler",
        "bt_p_equivalent": "P in .45 to .55",
    }
    chances = pairs[[*PAIR, *names]].rename(columns=names).round(2)  # they are simulated
    wins = model["predictive"][[*PAIR, "wins", "games", "predicted", "low", "high"]].round(1)
    text = [
        "Bayesian Bradley-Terry model: every algorithm has one ability, and only who wins counts, not by how much. P is the probability "
        f"that i beats j on a new dataset. Differences up to {model['tie']} are ties: half a win each, rounded up, so that a pair may have "
        "one game more than there are datasets.",
        f"Does the model fit? {model['inside_90']:.0%} of the pairs have as many wins as it predicts within 90 %, {model['inside_50']:.0%} "
        "within 50 %." + (" It does not: do not use it." if model["inside_90"] < 0.9 else ""),
    ]
    if n > 2:
        text.append(
            f"The model takes all comparisons of {n} algorithms on one dataset for independent, which makes it too sure: where the "
            f"algorithms are alike, its 95 % intervals are {model['intervals_too_narrow']:.1f} times too narrow. Those of resampled "
            "datasets, by maximum likelihood, do without that."
        )
    found = [
        ("P by pairs", chances),
        ("Wins of i, found and predicted", wins.rename(columns={"low": "90 % from", "high": "90 % to"})),
    ]
    return html.Section("How likely is a win on another dataset?", text, [(name, _rounded(table)) for name, table in found], [])


def _missing_cells(results: dict) -> "Section":
    from jaxbed.stats import html

    found = results["missing_cells"]
    text = f"Skillings-Mack on all cells: {found['statistic']:.4f}, {tables.p_equals(found['p'])} ({found['method']})."
    if found["listwise"]:
        text += f" Friedman on the complete datasets: {tables.p_equals(found['listwise']['p_permutation'])}."
    return html.Section("Missing cells", [text + " Where runs failed, the missing scores may have been bad: neither test knows."], [], [])


def _these_datasets(results: dict) -> "Section":
    from jaxbed.stats import html

    these = results["these_datasets"]
    found = [(f"{these['datasets']['test'].iloc[0]} on each dataset; p by permutation, Holm over datasets", these["datasets"])]
    if these["pairs"] is not None:
        found.append(("All datasets at once, runs divided anew; differences i - j in std of runs, positive = i better", these["pairs"]))
    found += [("Dunn, pairs on each dataset", these["dunn"]), ("Does a run of i beat a run of j?", these["improvement"])]
    text = [
        "Runs are random, datasets fixed. This says nothing about other datasets. Runs that share seeds or weights are not independent."
    ]
    return html.Section("Do they differ on these datasets?", text, [(name, _rounded(table)) for name, table in found], [])


def _firmness(results: dict, figures: dict) -> "Section":
    from jaxbed.stats import html

    found, text = [], []
    stability, power, multiverse = results["stability"], results["power"], results["multiverse"]
    if stability:
        text.append(f"Runs resampled {stability['resamples']} times within each algorithm: would other seeds say the same?")
        found += [("Share of resamples in which a pair is significant (Nemenyi)", stability["pairs"])]
        found += [("With the runs resampled", stability["runs_resampled"])]
        found += [("With runs and datasets resampled", stability["runs_and_datasets_resampled"])]
    varied = "; ".join(f"{name}: {', '.join(values)}" for name, values in multiverse["varied"].items())
    text.append(f"{multiverse['specifications']} specifications were tried. {varied}.")
    found.append(("In how many specifications a pair is significant", multiverse["pairs"]))
    found.append(("Friedman with one dataset left out", results["sensitivity"]["friedman_without_each_dataset"]))
    if power:
        text.append(
            f"Power is simulated with {power['runs']} run(s) from the estimated effects, as if they were true: for the best algorithm "
            f"that is too optimistic. In {power['unit']}, the interaction of algorithm and dataset is {power['interaction_std']:.2f}, "
            f"the std of runs {power['run_std']:.2f}."
        )
        found.append(("Datasets needed for 80 % power (empty: more than 60)", power["datasets_needed"]))
        found.append(("Smallest difference of two algorithms found with 80 % power, by runs", power["detectable_per_dataset"]))
    found = [(name, _rounded(table)) for name, table in found if table is not None]
    return html.Section("How firm is this?", text, found, _of(figures, "rank_stability"))


def _epochs(analysis: "Analysis", figures: dict) -> "Section":
    from jaxbed.stats import html

    text = [f"Epoch selection: {analysis.results['selection']['text']}."]
    return html.Section("Epochs", text, [("Chosen epochs", _rounded(analysis.chosen))], _of(figures, "epochs"))


def _rounded(table: "pd.DataFrame") -> "pd.DataFrame":
    """Four digits that count; the names of pairs short."""
    numbers = table.select_dtypes("float").columns
    short = table.assign(**{name: table[name].map(lambda value: float(f"{value:.4g}")) for name in numbers})
    return short.rename(columns=PAIR).rename(columns=lambda name: str(name).replace("_", " ")).reset_index(drop=True)


def _of(figures: dict, *names: str) -> list:
    return [figures[name] for name in names if name in figures]
