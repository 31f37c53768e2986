"""The verdict in words, for readers of nothing else: the question, the answer, how firm it is, what not to conclude. Cures of warnings.

Nothing is computed here: all numbers are results of `analysis`.
"""

import pandas as pd

from jaxbed.stats import tables
from jaxbed.stats.comparisons import ranks
from jaxbed.stats.sensitivity.power import TESTS as POWER_TESTS

MOST = 6  # most pairs named in a sentence
CURES = {
    "ALL_TIED": "Check the scores.",
    "APPROX": "Report the exact or permutation p, not that of F or chi2.",
    "CHERRY_PICKED": "Select by best_val or last if scores are to be tested.",
    "DEPENDENT_BLOCKS": "If data sets share images, name their family in --roles: the test then uses families as blocks.",
    "DIVERGED": "Report their number; compare the results of --missing drop and --missing floor.",
    "DUPLICATE_RUN": "Check whether a file was copied; leave the copy out with --exclude.",
    "FEW_BLOCKS": "Add data sets; report only exact p-values. More runs do not help.",
    "FEW_RUNS": "These tests are no evidence of equality; train more runs.",
    "FLOOR": "These tests are no evidence of equality; add data sets. More runs do not help.",
    "FRAGILE": "Call these pairs undecided.",
    "FROZEN_RUN": "Check its training log; train it again or leave it out with --exclude.",
    "GRANULARITY": "Find out how many images were evaluated, and give the number in --roles.",
    "HIDDEN_RUN": "Obtain the missing run; check whether the table includes a mislabelled one.",
    "IMPOSSIBLE": "Correct them, or leave out those runs with --exclude; the values are used as they are.",
    "INCOMPLETE": "Measure the missing scores, or leave out those runs or data sets.",
    "IN_DISTRIBUTION": "Use --datasets strict, or do not interpret those scores as shifted.",
    "MISFIT": "Use the signed-rank posterior for pairs.",
    "MISSING": "Measure the missing scores, or leave out that data set or that run.",
    "MIXED_SCALES": "Convert the scores to one scale.",
    "MIXED_TEST_IMAGES": "Evaluate all runs on the same images: jaxbed eval on each workdir with the same data folder.",
    "MIXED_TRAINING_DATA": "Compare runs with the same training data: leave the others out, or train them again.",
    "NOT_CONVERGED": "Try another --seed; do not use these results if the warning persists.",
    "NOT_READ": "To read a set, give the training command again with its name; to read a file, give it its name; else move them away.",
    "ONE_BLOCK": "Add data sets, or use --question these-datasets.",
    "ONE_RUN": "Train at least 3 runs, better 5.",
    "OUTLIER_RUN": "Check its configuration; if it is mislabelled, leave it out with --exclude.",
    "PAPER_DF": "Use it only to check published tables.",
    "PERFECT_AGREEMENT": "Report the exact p.",
    "POOL": "Fix the set of algorithms in advance, or use Wilcoxon or the signed-rank posterior of the pair in pairs.csv.",
    "READ_AS": "If this is wrong, name the columns with --columns, or correct the file.",
    "SMALL_GROUP": "Use --select ac_smooth:5 or ac_lower, or a larger validation split.",
    "TABLE_MISMATCH": "Find out which runs the table averages.",
    "TIED_SELECTION": "A larger validation split has fewer ties; --ties first and --ties last show how much they matter.",
    "TIES": "Record the number of correct predictions instead of rounded percentages.",
    "TWO_ALGORITHMS": "Report the exact p.",
    "UNEQUAL_EPOCHS": "Compare runs of equal length.",
    "UNEQUAL_RUNS": "Means remain valid; state the numbers in the table.",
    "UNKNOWN_ROLES": "Correct the spelling in the roles file if these names should match.",
    "UNUSED_COLUMNS": "If a column is needed, name it with --columns.",
    "VAL_IS_TEST": "Use --datasets strict, or select epochs on other images.",
}


def with_cures(warnings: list[dict]) -> list[dict]:
    """The warnings, each with what to do about it."""
    return [{**warning, "cure": CURES.get(warning["code"], "")} for warning in warnings]


def sentences(results: dict) -> list[str]:
    """The verdict, one or two sentences in each item; [] for one algorithm, which asks no question."""
    if len(results["algorithms"]) < 2:
        return []
    if results["no_test"]:
        return [f"No test: {results['no_test']}"]
    if results["paper"]:
        return _as_published(results)
    return _these_datasets(results) if results["question"] == "these-datasets" else _new_datasets(results)


def _new_datasets(results: dict) -> list[str]:
    n, m, alpha, baseline = len(results["algorithms"]), len(results["datasets"]), results["alpha"], results["baseline"]
    asked = f"Question: would the algorithms differ on another data set of this kind? {n} algorithms, {_count(m, 'data set')}"
    friedman, claimed = results["friedman"], results["claims"]
    if friedman is None:
        reason = "one data set is one block: no rank test over data sets is possible." if m else "no data set has scores of all algorithms."
        lines = [f"{asked}.", f"No conclusion: {reason} Add data sets; more runs do not help."]
        return lines + _skillings_mack(results) + (_these_datasets(results) if m else [])
    blocks = friedman["blocks"]
    asked += f" in {_count(blocks, 'family', 'families')}." if friedman["families"] else "."
    counted = _count(blocks, "family", "families") if friedman["families"] else _count(blocks, "data set")
    if claimed["smallest_p"] >= alpha:
        return [
            asked,
            f"No conclusion: with {counted} and {n} algorithms no pair can differ at alpha = {alpha:g}, whatever the scores "
            f"(smallest possible {tables.p_equals(claimed['smallest_p'])}). Add data sets; more runs do not help.",
            *_skillings_mack(results),
        ]
    lines, overall = [asked], claimed["overall"]
    if overall:
        omnibus = "The algorithms do not all perform alike" if overall["differ"] else "No difference among the algorithms is shown"
        p = tables.p_equals(friedman["p"], friedman["p_least"])
        lines.append(f"{omnibus} ({overall['test']}, {p}, alpha = {alpha:g}).")
    table = results[claimed["family"]]
    lines += _comparisons(claimed, table, "p_permutation", baseline, alpha)
    lines += _firm(results, claimed["found"])
    lines += _skillings_mack(results) + _needed(results)
    if len(claimed["found"]) < len(table):
        few = f" {counted} are too few for evidence of equality." if blocks < ranks.FEW_BLOCKS else ""
        lines.append(f"A difference that is not shown does not mean equality.{few}")
    return [*lines, *_family(claimed, alpha)]


def _these_datasets(results: dict) -> list[str]:
    these, alpha, baseline = results["these_datasets"], results["alpha"], results["baseline"]
    asked = "Question: would the algorithms differ on these data sets with other runs?"
    if these is None:
        return [asked, "No conclusion: every algorithm has one run, so the variation between runs is unknown. Train more runs."]
    claimed = results["claims"]
    table, overall = these["datasets"], claimed["overall"]
    if overall:
        differ = overall["datasets"]
        named = f": {_listed(differ)}" if 0 < len(differ) < len(table) else ""
        lines = [asked, f"On {len(differ)} of {_count(len(table), 'data set')} they differ ({overall['test']}){named}."]
    else:
        lines = [asked, f"So few runs cannot show a difference on any data set{_least(these['floors']['datasets'])}."]
    if claimed["family"] and claimed["smallest_p"] < alpha:
        lines += _comparisons(claimed, these[claimed["family"]], "p_holm", baseline, alpha, " over all data sets together")
    elif claimed["family"]:
        lines.append(
            f"No conclusion on pairs: so few runs cannot show that any pair differs{_least(claimed['smallest_p'])}. Train more runs."
        )
    lines.append("Nothing follows for other data sets.")
    return lines + _family(claimed, alpha) if overall or claimed["smallest_p"] < alpha else lines


def _comparisons(claimed: dict, table: pd.DataFrame, column: str, baseline: str | None, alpha: float, where: str = "") -> list[str]:
    """The claimed comparisons; if there is none, the smallest p."""
    if baseline is not None and claimed["family"] == "baseline_comparisons":
        lines = _against(claimed, table, column, baseline, alpha, where)
    else:
        lines = [_all_pairs(claimed, table, column, alpha)]
    if claimed["overall"] and not claimed["overall"]["differ"] and (table[column] < alpha).any():
        lines.append("Comparisons with p below alpha do not count, because the overall test, which comes first, finds no difference.")
    return lines


def _family(claimed: dict, alpha: float) -> list[str]:
    overall, family, count = claimed["overall"], claimed["family"], claimed["comparisons"]
    compared = f"the {_count(count, 'comparison')} with the baseline" if family == "baseline_comparisons" else _count(count, "pair")
    steps = []
    if overall:
        steps.append(f"first each data set ({overall['test']})" if "datasets" in overall else f"first the {overall['test']}")
    steps += [f"{compared} ({claimed['test']})"] if family else []
    if not steps:
        return []
    return [
        f"Procedure: {'; if it finds a difference, '.join(steps)}. Nothing else is claimed: if no algorithm differs, the probability of "
        f"any false claim is at most {alpha:g}. All other tests in the report are exploratory."
    ]


def _least(p: float) -> str:
    return f", whatever the scores (smallest possible {tables.p_equals(p)})"


def _as_published(results: dict) -> list[str]:
    paper, alpha = results["paper"], results["alpha"]
    p = paper["nemenyi"]
    names = results["algorithms"]
    differing = [(i, j) for index, i in enumerate(names) for j in names[index + 1 :] if p[i][j] < alpha]
    degrees = ", ".join(f"{value:.2f}" for value in paper["degrees_of_freedom"])
    listed = "; ".join(f"{i} - {j} (p = {p[i][j]:.3f})" for i, j in differing)
    return [
        f"As published, not as recommended: F = {paper['f']:.2f}, p = {paper['p']:.2g} (d.o.f. {degrees}).",
        f"Nemenyi: {_count(len(differing), 'pair differs', 'pairs differ')} at alpha = {alpha:g}" + (f": {listed}." if differing else "."),
    ]


def _skillings_mack(results: dict) -> list[str]:
    tested = results["missing_cells"]
    if tested is None:
        return []
    p = tables.p_equals(tested["p"], tested["p_least"])
    return [
        f"Including the incomplete data sets: Skillings-Mack {tested['statistic']:.2f}, {p} ({_count(tested['n_datasets'], 'data set')})."
    ]


def _against(claimed: dict, table: pd.DataFrame, column: str, baseline: str, alpha: float, where: str) -> list[str]:
    claims, family = claimed["found"], f"{_count(len(table), 'comparison')}, alpha = {alpha:g}"
    if not claims:
        return [f"No algorithm differs from {baseline}{where} ({family}, smallest {_smallest(table, column)})."]
    lines = []
    for word, other in (("better", "worse"), ("worse", "better")):
        names = [f"{claim[word]} ({claim['p_text']})" for claim in claims if claim[other] == baseline]
        lines += [f"{_word(len(names))} {word} than {baseline}{where} ({family}): {_listed(names)}."] if names else []
    return lines


def _all_pairs(claimed: dict, table: pd.DataFrame, column: str, alpha: float) -> str:
    claims, count = claimed["found"], len(table)
    if not claims and count > 1:
        return f"No pair differs at alpha = {alpha:g}."
    if not claims:
        return f"The two algorithms are not shown to differ ({_smallest(table, column)}, alpha = {alpha:g})."
    listed = [f"{claim['better']} better than {claim['worse']} ({claim['p_text']})" for claim in claims]
    if count == 1:
        return f"They differ: {listed[0]}."
    return f"Of all {count} pairs, adjusted for all, {len(claims)} differ{'s' * (len(claims) == 1)}: {_listed(listed)}."


def _smallest(table: pd.DataFrame, column: str) -> str:
    row = table[column].idxmin()
    return tables.p_equals(table[column][row], tables.least(table, column)[row])


def _firm(results: dict, claims: list[dict]) -> list[str]:
    """How often each claim holds with other runs and under other choices, and by which test."""
    lines, multiverse, stability = [], results["multiverse"], results["stability"]
    pairs, alpha, planned = results["pairs"], results["alpha"], results["claims"]["family"] == "baseline_comparisons"
    for claim in claims[:3]:
        better, worse, parts = claim["better"], claim["worse"], []
        if stability and stability["pairs"] is not None:
            table = stability["baseline_comparisons" if planned else "pairs"]
            row = table[_is_pair(table, better, worse)].iloc[0]
            test = stability["baseline_comparisons_test" if planned else "pairs_test"]
            parts.append(f"in {_of_resamples(row['significant'], round(1 / row['least']))} of the runs ({test})")
        counts = multiverse["pairs"][_is_pair(multiverse["pairs"], better, worse)]
        for row in counts.to_dict("records"):
            agreeing = row["i_better"] if row["algorithm_i"] == better else row["j_better"]
            parts.append(f"in {agreeing} of {row['specifications']} specifications (other rules, runs, datasets, tests)")
        lines += [f"{better} over {worse} is significant {' and '.join(parts)}."] if parts else []
        row = pairs[_is_pair(pairs, better, worse)].iloc[0]
        if planned and row["p_permutation"] >= alpha:
            adjusted = f"Adjusted for all {len(pairs)} pairs it is not ({tables.p_equals(row['p_permutation'])})"
            lines.append(f"{adjusted}: it counts only if {results['baseline']} was chosen as the baseline in advance.")
    left_out = multiverse["left_out"]
    if lines and left_out:
        which = "; ".join(f"{row['test']} on {_count(row['datasets'], 'data set')}" for row in left_out)
        count = sum(row["specifications"] for row in left_out)
        named = "1 specification is not counted because it" if count == 1 else f"{count} specifications are not counted because they"
        lines.append(f"{named} cannot reject whatever the scores ({which}).")
    return ["How firm: " + " ".join(lines)] if lines else []


def _of_resamples(share: float, draws: int) -> str:
    if share in (0, 1):
        return f"{'all' if share else 'none of'} {draws} resamples"
    return f"{min(max(round(100 * share), 1), 99)} % of {draws} resamples"


def _needed(results: dict) -> list[str]:
    """Number of data sets for 80 % power: the best algorithm against the baseline, or against the second best."""
    power, baseline, m = results["power"], results["baseline"], len(results["datasets"])
    if power is None or results["friedman"]["families"]:  # power assumes independent data sets
        return []
    order = sorted(results["friedman"]["mean_ranks"].items(), key=lambda item: (item[1], item[0]))
    better, other = (order[0][0], order[1][0]) if baseline is None or order[0][0] == baseline else (order[0][0], baseline)
    test = "control_holm" if other == baseline else "nemenyi"
    table = power["datasets_needed"]
    needed = table.loc[(table["test"] == test) & _is_pair(table, better, other), "datasets"].iloc[0]
    if needed <= m:
        return []
    count = f"about {needed:g} data sets like these ({needed - m:g} more)" if needed == needed else "more than 60 data sets like these"
    shown = any({better, other} == {claim["better"], claim["worse"]} for claim in results["claims"]["found"])
    by = "the exact sign test" if len(order) == 2 else POWER_TESTS[test]
    text = f"To show {better} better than {other} in 80 % of such studies by {by}, {count} would be needed"
    text += ", so another study of this size may well not show it" if shown else ""
    return [f"{text}, if the estimated differences are true."]


def _is_pair(table: pd.DataFrame, first: str, second: str) -> pd.Series:
    i, j = table["algorithm_i"], table["algorithm_j"]
    return ((i == first) & (j == second)) | ((i == second) & (j == first))


def _listed(names: list[str]) -> str:
    return "; ".join(names[:MOST]) + (f"; and {len(names) - MOST} more" if len(names) > MOST else "")


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _word(count: int) -> str:
    return "One algorithm is" if count == 1 else f"{count} algorithms are"
