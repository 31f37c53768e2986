"""The sections of the page that show tests: one function for each."""

import pandas as pd

from jaxbed.stats import new_datasets, tables
from jaxbed.stats.analysis import Analysis
from jaxbed.stats.comparisons import cliques, pairwise
from jaxbed.stats.comparisons.ranks import FEW_BLOCKS
from jaxbed.stats.new_datasets import BY_BLOCKS, FLOORS, Overall
from jaxbed.stats.output import headings, html, sections
from jaxbed.stats.output.html import Section
from jaxbed.stats.sensitivity import bootstrap

PAIR = ["algorithm_i", "algorithm_j"]


def on_new_datasets(analysis: Analysis, figures: dict) -> Section:
    results = analysis.results
    friedman, pairs = results["friedman"], results["pairs"]
    moment, classic = friedman["f_degrees_of_freedom_moment"], friedman["f_degrees_of_freedom_iman_davenport"]
    few = friedman["families"] or friedman["blocks"] < FEW_BLOCKS  # approximations are rough then: only the permutation test is shown
    omnibus = pd.DataFrame(
        [
            (f"permutation ({friedman['p_method']}), used in the verdict", friedman["chi2"], "", friedman["p"], friedman["p_least"]),
            ("F, d.o.f. that match the moments", friedman["f"], f"{moment[0]:.2f}, {moment[1]:.2f}", friedman["p_f_moment"], 0.0),
            ("F, Iman-Davenport", friedman["f"], f"{classic[0]}, {classic[1]}", friedman["p_f_iman_davenport"], 0.0),
            ("chi2", friedman["chi2"], str(friedman["chi2_degrees_of_freedom"]), friedman["p_chi2"], 0.0),
            *(_overall(test, results[test.name]) for test in new_datasets.OVERALL),
        ],
        columns=["test", "statistic", "d.o.f.", "p", "p_least"],
    )[: 1 if few else None]
    rough = ("p_nemenyi", "p_z_holm", "p_z_shaffer", "p_z_bergmann_hommel", "p_conover_holm") if few else ()
    raw = ("p_permutation_least", *(f"p_{test.name}" for test in pairwise.TESTS))
    p = ["p_permutation", "p_permutation_least", *(name for name in pairs if name.startswith("p_") and name not in (*rough, *raw))]
    effects = ["rank_difference", "rank_difference_low", "rank_difference_high", "hodges_lehmann", "hodges_lehmann_low"]
    effects += ["hodges_lehmann_high", *(effect.name for effect in pairwise.EFFECTS), "wins_i", "ties", "wins_j"]
    bayes = [name for name in pairs if name.startswith(("bayes_p", "bayes_least"))]
    captioned = [
        ("Do they differ at all?", omnibus),
        (f"Mean ranks, 1 = best; letters by {analysis.p_name}, alpha = {analysis.alpha:g}", _mean_ranks(analysis)),
        ("p-values of all pairs, adjusted for all of them", pairs[[*PAIR, *dict.fromkeys(p)]]),
        ("Sizes of the differences, first minus second", pairs[[*PAIR, *(name for name in effects if name in pairs)]]),
        ("Bayesian signed-rank test: is one better, or is the difference within the rope?", pairs[[*PAIR, *bayes]]),
    ]
    floors = {
        FLOORS[name]: max(p, friedman["p_least"] * (name in BY_BLOCKS))
        for name, p in results["floors"].items()
        if results["baseline"] is not None or "baseline" not in name
    }
    captioned.append(
        ("Smallest p that the tests can give here, whatever the scores", pd.DataFrame(floors.items(), columns=["test", "smallest_p"]))
    )
    if results["baseline_comparisons"] is not None:
        against = results["baseline_comparisons"]
        names = [*PAIR, "rank_difference", "hodges_lehmann", "hodges_lehmann_low", "hodges_lehmann_high", "p_permutation"]
        names += ["p_permutation_least", "p_z_holm", "p_wilcoxon_holm", "p_sign_holm"]
        shown = against[[name for name in names if name in against and name not in rough]]
        captioned.insert(0, (f"All against {results['baseline']}, adjusted for these comparisons", shown))
    captioned = sections.presented(captioned, results["alpha"])
    if results["paper"]:
        published = pd.DataFrame(results["paper"]["nemenyi"]).rename_axis("p").reset_index()
        captioned.insert(0, (f"As published: F = {results['paper']['f']:.6f}, p = {results['paper']['p']:.4g}; Nemenyi", published))
    blocks = (
        f"{friedman['blocks']} families of data sets are the blocks of the permutation test. All other tests here, the posteriors and the "
        "power count every data set as independent evidence and are overconfident: do not report them."
        if friedman["families"]
        else "Every data set is one block with one mean over runs for each algorithm; runs are not blocks, because they share what is "
        "specific to the data set."
    )
    text = [
        blocks,
        "In a pair A – B differences are A minus B: A is better if the difference of ranks is negative and the shift "
        f"(Hodges-Lehmann) positive. Differences up to {results['rope']:g}, the rope, do not matter. Only the procedure in the verdict "
        "makes claims; the other tests are exploratory.",
    ]
    drawn = sections.of(figures, "critical_difference", "forest", "p_values")
    return sections.section("Would they differ on another data set?", text, captioned, drawn)


def _overall(test: Overall, result: dict) -> tuple[str, float, str, float, float]:
    return test.title, result[test.statistic], ", ".join(map(str, result[test.degrees_of_freedom])), result["p"], 0.0


def _mean_ranks(analysis: Analysis) -> pd.DataFrame:
    means, p = analysis.mean_ranks, analysis.p
    assert means is not None and p is not None  # of every analysis with pairs
    table = means.rename_axis("algorithm").rename("mean rank").reset_index()
    letters = cliques.letters(means, p, analysis.alpha)
    table = table if letters is None else table.assign(**{"same letter: no significant difference": table["algorithm"].map(letters)})
    return table.sort_values("mean rank", kind="stable")


def bradley_terry(results: dict) -> Section:
    model, pairs, n = results["bradley_terry"], results["pairs"], len(results["algorithms"])
    names = ["bt_p", "bt_low", "bt_high", "win_low", "win_high", "bt_p_better", "bt_p_equivalent", "bt_least"]
    simulated = ["bt_p", "bt_low", "bt_high", "win_low", "win_high"]
    chances = pairs[[*PAIR, *names]].assign(**pairs[simulated].round(3))
    wins = model["predictive"][[*PAIR, "wins", "games", "predicted", "low", "high"]].round(1)
    text = [
        "Bayesian Bradley-Terry model: every algorithm has one ability, and only wins count, not their margins. P is the probability "
        f"that the first beats the second on a new data set. Differences up to {model['tie']} are ties: half a win each, rounded up, so a "
        "pair may have one game more than there are data sets.",
        f"Does the model fit? {model['inside_90']:.0%} of the pairs have wins in its 90 % interval, {model['inside_50']:.0%} "
        "in its 50 % interval." + (" It does not fit: do not use it." if model["inside_90"] < 0.9 else ""),
    ]
    if n > 2:
        text.append(
            f"The model treats all comparisons of {n} algorithms on one data set as independent, which makes it overconfident: if the "
            f"algorithms are alike, its 95 % intervals are {model['intervals_too_narrow']:.1f} times too narrow. The intervals from "
            "resampled data sets, by maximum likelihood, do not assume this."
        )
    captioned = [
        ("P for each pair", headings.present(chances, results["alpha"])),
        (
            "Wins of the first, observed and predicted",
            headings.present(wins, results["alpha"]).rename(columns=lambda name: name.replace("95", "90")),
        ),
    ]
    return sections.section("How likely is a win on another data set?", text, captioned, [])


def missing_cells(results: dict) -> Section:
    tested = results["missing_cells"]
    p = tables.p_equals(tested["p"], tested["p_least"])
    text = f"Skillings-Mack on all cells: {tested['statistic']:.4f}, {p} ({tested['method']})."
    if listwise := tested["listwise"]:
        text += f" Friedman on the complete data sets: {tables.p_equals(listwise['p_permutation'], 1 / (listwise['draws'] + 1))}."
    return html.Section(
        "Missing cells", [text + " If runs failed, the missing scores might have been low: neither test can account for that."], [], []
    )


def on_these_datasets(results: dict) -> Section:
    these, alpha = results["these_datasets"], results["alpha"]
    tested = these["datasets"]
    tests = ["dataset", "n_runs", "statistic", "degrees_of_freedom", "p", "p_least", "p_holm"]
    shown = [*PAIR, "difference", "cliffs_delta", "a12", "p", "p_least", "p_holm"]
    captioned = [(f"{tested['test'].iloc[0]} on each data set; p by permutation, Holm over data sets", tested[tests])]
    if these["baseline_comparisons"] is not None:
        title = f"All against {results['baseline']}, all data sets at once, runs reassigned"
        captioned.append((title, these["baseline_comparisons"][shown]))
    if these["pairs"] is not None:
        captioned.append(("All pairs, all data sets at once, runs reassigned; positive: the first is better", these["pairs"][shown]))
    captioned += [
        ("Dunn's test of pairs on each data set", these["dunn"]),
        ("How often does a run of the first beat one of the second?", these["improvement"]),
    ]
    text = ["Runs are random, data sets fixed. Nothing follows for other data sets. Runs that share seeds or weights are not independent."]
    return sections.section("Do they differ on these data sets?", text, sections.presented(captioned, alpha), [])


def firmness(results: dict, figures: dict) -> Section:
    captioned, text = [], []
    stability, power, multiverse = results["stability"], results["power"], results["multiverse"]
    if stability:
        text.append(f"Runs resampled {stability['resamples']} times within each algorithm: would other seeds give the same result?")
        text.append(_coverage())
        share = "Share of run resamples in which a comparison is significant"
        captioned += [(f"{share}: {stability['baseline_comparisons_test']}", stability["baseline_comparisons"])]
        captioned += [(f"{share}: {stability['pairs_test']}, all pairs", stability["pairs"])]
        captioned += [("Intervals with the runs resampled; for means also the t interval", stability["runs_resampled"])]
        captioned += [("Intervals with runs and data sets resampled", stability["runs_and_datasets_resampled"])]
    varied = "; ".join(f"{name}: {', '.join(values)}" for name, values in multiverse["varied"].items())
    text.append(f"{multiverse['specifications']} specifications were tried. {varied}.")
    if multiverse["left_out"]:
        lost = [f"{row['test']} on {row['datasets']} data sets (smallest p {row['smallest_p']:.2g})" for row in multiverse["left_out"]]
        count = sum(row["specifications"] for row in multiverse["left_out"])
        text.append(f"{count} more are not counted because they cannot reject, whatever the scores: {'; '.join(lost)}.")
    captioned.append(("In how many specifications a pair is significant", multiverse["pairs"]))
    captioned.append(("Friedman with one data set left out", results["sensitivity"]["friedman_without_each_dataset"]))
    if power:
        text.append(
            f"Power is simulated with {power['runs']} run(s) and assumes that the estimated effects are true: for the best algorithm "
            f"this is too optimistic. In {power['unit']}, the interaction of algorithm and data set is {power['interaction_std']:.2f}, "
            f"the std of runs {power['run_std']:.2f}."
        )
        captioned.append(("Data sets needed for 80 % power (–: more than 60)", power["datasets_needed"]))
        captioned.append(
            ("Smallest difference of two algorithms detected with 80 % power, by number of runs", power["detectable_per_dataset"])
        )
    captioned = [(name, table) for name, table in captioned if table is not None]
    return sections.section(
        "How firm is this?", text, sections.presented(captioned, results["alpha"]), sections.of(figures, "rank_stability")
    )


def _coverage() -> str:
    """The coverage of percentile intervals."""
    by_runs = "; ".join(
        f"{', '.join(f'{share:.0%} with {runs}' for runs, share in of.items())} runs for the {name}"
        for name, of in bootstrap.COVERAGE.items()
    )
    by_datasets = ", ".join(f"{share:.0%} with {m}" for m, share in bootstrap.COVERAGE_OF_DATASETS["mean rank"].items())
    return (
        f"Percentile intervals are too narrow if there is little to resample. In simulations nominal 95 % intervals covered the truth in "
        f"{by_runs}; with the data sets resampled too, in {by_datasets} data sets for differences of mean ranks. The t interval of a mean "
        "covers it in 95 %."
    )
