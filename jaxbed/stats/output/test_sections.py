"""The sections of the page that show tests: one function for each."""

import pandas as pd

from jaxbed.stats import tables
from jaxbed.stats.analysis import Analysis
from jaxbed.stats.comparisons import cliques
from jaxbed.stats.comparisons.ranks import FEW_BLOCKS
from jaxbed.stats.new_datasets import BY_BLOCKS, FLOORS
from jaxbed.stats.output import headings, html, sections
from jaxbed.stats.output.html import Section
from jaxbed.stats.sensitivity import bootstrap

PAIR = ["algorithm_i", "algorithm_j"]


def new_datasets(analysis: Analysis, figures: dict) -> Section:

    results = analysis.results
    friedman, pairs = results["friedman"], results["pairs"]
    moment, classic = friedman["f_degrees_of_freedom_moment"], friedman["f_degrees_of_freedom_iman_davenport"]
    quade, degrees_of_quade = results["quade"], ", ".join(map(str, results["quade"]["f_degrees_of_freedom"]))
    few = friedman["families"] or friedman["blocks"] < FEW_BLOCKS  # approximations are rough there, and only the headline is shown
    omnibus = pd.DataFrame(
        [
            (f"permutation ({friedman['p_method']}), the headline", friedman["chi2"], "", friedman["p"], friedman["p_least"]),
            ("F, d.o.f. that match the moments", friedman["f"], f"{moment[0]:.2f}, {moment[1]:.2f}", friedman["p_f_moment"], 0.0),
            ("F, Iman-Davenport", friedman["f"], f"{classic[0]}, {classic[1]}", friedman["p_f_iman_davenport"], 0.0),
            ("chi2", friedman["chi2"], str(friedman["chi2_degrees_of_freedom"]), friedman["p_chi2"], 0.0),
            ("Quade, F: datasets on which the scores differ more count more", quade["f"], degrees_of_quade, quade["p"], 0.0),
        ],
        columns=["test", "statistic", "d.o.f.", "p", "p_least"],
    )[: 1 if few else None]
    rough = ("p_nemenyi", "p_z_holm", "p_z_shaffer", "p_z_bergmann_hommel", "p_conover_holm") if few else ()
    raw = ("p_permutation_least", "p_z", "p_conover", "p_wilcoxon", "p_pratt", "p_sign")
    p = ["p_permutation", "p_permutation_least", *(name for name in pairs if name.startswith("p_") and name not in (*rough, *raw))]
    effects = ["rank_difference", "rank_difference_low", "rank_difference_high", "hodges_lehmann", "hodges_lehmann_low"]
    effects += ["hodges_lehmann_high", "rank_biserial", "wins_i", "ties", "wins_j"]
    bayes = [name for name in pairs if name.startswith(("bayes_p", "bayes_least"))]
    found = [
        ("Do they differ at all?", omnibus),
        (f"Mean ranks, 1 = best; letters by {analysis.p_name}, alpha = {analysis.alpha:g}", _mean_ranks(analysis)),
        ("p-values of all pairs, adjusted for all of them", pairs[[*PAIR, *dict.fromkeys(p)]]),
        ("Sizes of the differences, first minus second", pairs[[*PAIR, *(name for name in effects if name in pairs)]]),
        ("Bayesian signed rank: which is better, or neither by more than the rope", pairs[[*PAIR, *bayes]]),
    ]
    floors = {
        FLOORS[name]: max(p, friedman["p_least"] * (name in BY_BLOCKS))
        for name, p in results["floors"].items()
        if results["baseline"] is not None or "baseline" not in name
    }
    found.append(
        ("Smallest p that the tests can give here, whatever the scores", pd.DataFrame(floors.items(), columns=["test", "smallest_p"]))
    )
    if results["baseline_comparisons"] is not None:
        against = results["baseline_comparisons"]
        names = [*PAIR, "rank_difference", "hodges_lehmann", "hodges_lehmann_low", "hodges_lehmann_high", "p_permutation"]
        names += ["p_permutation_least", "p_z_holm", "p_wilcoxon_holm", "p_sign_holm"]
        shown = against[[name for name in names if name in against and name not in rough]]
        found.insert(0, (f"All against {results['baseline']}, adjusted for these comparisons", shown))
    found = sections.presented(found, results["alpha"])
    if results["paper"]:
        published = pd.DataFrame(results["paper"]["nemenyi"]).rename_axis("p").reset_index()
        found.insert(0, (f"As published: F = {results['paper']['f']:.6f}, p = {results['paper']['p']:.4g}; Nemenyi", published))
    blocks = (
        f"{friedman['blocks']} families of datasets are the blocks of the permutation test. All other tests here, the posteriors and the "
        "power take every dataset for separate evidence and are too sure: do not quote them."
        if friedman["families"]
        else "Every dataset is one block with one mean over runs for each algorithm; runs are not blocks, for they repeat what is peculiar "
        "to the dataset."
    )
    text = [
        blocks,
        "In a pair A – B differences are A minus B: a negative difference of ranks means that A is better; a positive shift "
        f"(Hodges-Lehmann) too. Differences up to {results['rope']:g}, the rope, do not matter. Only the verdict's procedure is a claim; "
        "the other tests are exploratory.",
    ]
    drawn = sections.of(figures, "critical_difference", "forest", "p_values")
    return sections.section("Would they differ on another dataset?", text, found, drawn)


def _mean_ranks(analysis: Analysis) -> pd.DataFrame:
    table = analysis.mean_ranks.rename_axis("algorithm").rename("mean rank").reset_index()
    letters = cliques.letters(analysis.mean_ranks, analysis.p, analysis.alpha)
    table = table if letters is None else table.assign(**{"same letter: no difference": table["algorithm"].map(letters)})
    return table.sort_values("mean rank", kind="stable")


def bradley_terry(results: dict) -> Section:
    model, pairs, n = results["bradley_terry"], results["pairs"], len(results["algorithms"])
    names = ["bt_p", "bt_low", "bt_high", "win_low", "win_high", "bt_p_better", "bt_p_equivalent", "bt_least"]
    simulated = ["bt_p", "bt_low", "bt_high", "win_low", "win_high"]
    chances = pairs[[*PAIR, *names]].assign(**pairs[simulated].round(3))
    wins = model["predictive"][[*PAIR, "wins", "games", "predicted", "low", "high"]].round(1)
    text = [
        "Bayesian Bradley-Terry model: every algorithm has one ability, and only who wins counts, not by how much. P is the probability "
        f"that the first beats the second on a new dataset. Differences up to {model['tie']} are ties: half a win each, rounded up, so a "
        "pair may have one game more than there are datasets.",
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
        ("P by pairs", headings.present(chances, results["alpha"])),
        (
            "Wins of the first, found and predicted",
            headings.present(wins, results["alpha"]).rename(columns=lambda name: name.replace("95", "90")),
        ),
    ]
    return sections.section("How likely is a win on another dataset?", text, found, [])


def missing_cells(results: dict) -> Section:
    found = results["missing_cells"]
    p = tables.p_equals(found["p"], found["p_least"])
    text = f"Skillings-Mack on all cells: {found['statistic']:.4f}, {p} ({found['method']})."
    if listwise := found["listwise"]:
        text += f" Friedman on the complete datasets: {tables.p_equals(listwise['p_permutation'], 1 / (listwise['draws'] + 1))}."
    return html.Section("Missing cells", [text + " Where runs failed, the missing scores may have been bad: neither test knows."], [], [])


def these_datasets(results: dict) -> Section:
    these, alpha = results["these_datasets"], results["alpha"]
    tested = these["datasets"]
    tests = ["dataset", "n_runs", "statistic", "degrees_of_freedom", "p", "p_least", "p_holm"]
    shown = [*PAIR, "difference", "cliffs_delta", "a12", "p", "p_least", "p_holm"]
    found = [(f"{tested['test'].iloc[0]} on each dataset; p by permutation, Holm over datasets", tested[tests])]
    if these["baseline_comparisons"] is not None:
        title = f"All against {results['baseline']}, all datasets at once, runs divided anew"
        found.append((title, these["baseline_comparisons"][shown]))
    if these["pairs"] is not None:
        found.append(("All pairs, all datasets at once, runs divided anew; positive: the first is better", these["pairs"][shown]))
    found += [
        ("Dunn's test of pairs on each dataset", these["dunn"]),
        ("Does a run of the first beat one of the second?", these["improvement"]),
    ]
    text = [
        "Runs are random, datasets fixed. This says nothing about other datasets. Runs that share seeds or weights are not independent."
    ]
    return sections.section("Do they differ on these datasets?", text, sections.presented(found, alpha), [])


def firmness(results: dict, figures: dict) -> Section:
    found, text = [], []
    stability, power, multiverse = results["stability"], results["power"], results["multiverse"]
    if stability:
        text.append(f"Runs resampled {stability['resamples']} times within each algorithm: would other seeds say the same?")
        text.append(_coverage())
        share = "Share of run resamples in which a comparison is significant"
        found += [(f"{share}: {stability['baseline_comparisons_test']}", stability["baseline_comparisons"])]
        found += [(f"{share}: {stability['pairs_test']}, all pairs", stability["pairs"])]
        found += [("Intervals with the runs resampled; of means the t interval too", stability["runs_resampled"])]
        found += [("Intervals with runs and datasets resampled", stability["runs_and_datasets_resampled"])]
    varied = "; ".join(f"{name}: {', '.join(values)}" for name, values in multiverse["varied"].items())
    text.append(f"{multiverse['specifications']} specifications were tried. {varied}.")
    if multiverse["left_out"]:
        lost = [f"{row['test']} on {row['datasets']} datasets (smallest p {row['smallest_p']:.2g})" for row in multiverse["left_out"]]
        count = sum(row["specifications"] for row in multiverse["left_out"])
        text.append(f"{count} more are not counted, since they cannot reject whatever the scores: {'; '.join(lost)}.")
    found.append(("In how many specifications a pair is significant", multiverse["pairs"]))
    found.append(("Friedman with one dataset left out", results["sensitivity"]["friedman_without_each_dataset"]))
    if power:
        text.append(
            f"Power is simulated with {power['runs']} run(s) from the estimated effects, as if they were true: for the best algorithm "
            f"that is too optimistic. In {power['unit']}, the interaction of algorithm and dataset is {power['interaction_std']:.2f}, "
            f"the std of runs {power['run_std']:.2f}."
        )
        found.append(("Datasets needed for 80 % power (–: more than 60)", power["datasets_needed"]))
        found.append(("Smallest difference of two algorithms found with 80 % power, by runs", power["detectable_per_dataset"]))
    found = [(name, table) for name, table in found if table is not None]
    return sections.section("How firm is this?", text, sections.presented(found, results["alpha"]), sections.of(figures, "rank_stability"))


def _coverage() -> str:
    """How often percentile intervals hold the truth."""
    by_runs = "; ".join(
        f"{', '.join(f'{share:.0%} with {runs}' for runs, share in of.items())} runs for the {name}"
        for name, of in bootstrap.COVERAGE.items()
    )
    by_datasets = ", ".join(f"{share:.0%} with {m}" for m, share in bootstrap.COVERAGE_OF_DATASETS["mean rank"].items())
    return (
        f"Percentile intervals are too narrow where there is little to resample. In simulations nominal 95 % intervals held the truth in "
        f"{by_runs}; with the datasets resampled too, in {by_datasets} datasets for differences of mean ranks. The t interval of a mean "
        "holds it in 95 %."
    )
