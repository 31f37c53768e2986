"""What was asked, what was found, how firm it is and what not to conclude: sentences for somebody who reads nothing else. And cures.

Nothing is computed here: all numbers are those of `analysis`.
"""

from typing import TYPE_CHECKING

from jaxbed.stats import ranks, tables

if TYPE_CHECKING:
    import pandas as pd

MOST = 6  # pairs named in a sentence
CURES = {
    "ALL_TIED": "Look whether the scores are what they should be.",
    "APPROX": "Quote the permutation p, not that of F or chi2.",
    "CHERRY_PICKED": "Select by best_val or last for anything that is to be tested.",
    "DEPENDENT_BLOCKS": "Where datasets share images, name their family in --roles: the test then counts families.",
    "DIVERGED": "Report their number; compare --missing drop with --missing floor.",
    "DUPLICATE_RUN": "Look whether a file was copied; leave the copy out with --exclude.",
    "FEW_BLOCKS": "Add datasets; quote exact p-values only. More runs do not help.",
    "FEW_RUNS": "Do not read these tests as evidence of equality; train more runs.",
    "FLOOR": "Do not read these tests as evidence of equality; add datasets. More runs do not help.",
    "FRAGILE": "Call these pairs undecided.",
    "FROZEN_RUN": "Look at its training log; train it again or leave it out with --exclude.",
    "GRANULARITY": "Ask how many images were evaluated, and give it in --roles.",
    "HIDDEN_RUN": "Ask for the run; check whether the table holds a mislabelled one.",
    "IMPOSSIBLE": "Correct them, or leave out those runs with --exclude: they count as they stand.",
    "INCOMPLETE": "Measure the missing scores, or leave out those runs or datasets.",
    "IN_DISTRIBUTION": "Use --datasets strict, or do not count those cells as shifted.",
    "MISFIT": "Judge the pairs by the signed-rank posterior.",
    "MISSING": "Measure them, or leave out that dataset or that run.",
    "MIXED_SCALES": "Convert the scores to one scale.",
    "MIXED_TRAINING_DATA": "Compare runs on one training set: leave the others out, or train them on it.",
    "NOT_CONVERGED": "Try another --seed; do not use these results if it says so again.",
    "ONE_BLOCK": "Add datasets, or ask --question these-datasets.",
    "ONE_RUN": "Train at least 3 runs, better 5.",
    "OUTLIER_RUN": "Look at its configuration; if it is mislabelled, leave it out with --exclude.",
    "PAPER_DF": "For checking published tables only.",
    "PERFECT_AGREEMENT": "Quote the exact p.",
    "POOL": "Fix the set of algorithms beforehand, or judge the pair by Wilcoxon or the signed-rank posterior in pairs.csv.",
    "READ_AS": "If something else was meant, name columns with --columns, or correct the file.",
    "SMALL_GROUP": "Use --select ac_smooth:5 or ac_lower, or validate on more images.",
    "TABLE_MISMATCH": "Ask which runs the table averages.",
    "TIED_SELECTION": "A larger validation split ties less; --ties first and last show how much it matters.",
    "TIES": "Record counts of right answers, not rounded percentages.",
    "TWO_ALGORITHMS": "Quote the exact p.",
    "UNEQUAL_EPOCHS": "Compare runs of one length.",
    "UNEQUAL_RUNS": "Harmless for means; say the number in the table.",
    "UNKNOWN_ROLES": "Correct the spelling in the roles, if they are meant.",
    "UNUSED_COLUMNS": "Rename the column if it is needed.",
    "VAL_IS_TEST": "Use --datasets strict, or select on other images.",
}


def with_cures(warnings: list[dict]) -> list[dict]:
    return [{**warning, "cure": CURES.get(warning["code"], "")} for warning in warnings]


def sentences(results: dict) -> list[str]:
    """The verdict: one sentence or two in each item."""
    if results["no_test"]:
        return [f"No test: {results['no_test']}"]
    if results["paper"]:
        return _as_published(results)
    return _these_datasets(results) if results["question"] == "these-datasets" else _new_datasets(results)


def _new_datasets(results: dict) -> list[str]:
    n, m, alpha, baseline = len(results["algorithms"]), len(results["datasets"]), results["alpha"], results["baseline"]
    asked = f"Asked: would the algorithms differ on another dataset of this kind? {n} algorithms, {_count(m, 'dataset')}"
    friedman = results["friedman"]
    if friedman is None:
        found = (
            "one dataset is one block, and no rank test over datasets is possible." if m else "no dataset was measured for all algorithms."
        )
        lines = [f"{asked}.", f"No conclusion: {found} Add datasets; more runs do not help."]
        return lines + _skillings_mack(results) + (_these_datasets(results) if m else [])
    blocks = friedman["blocks"]
    asked += f" in {_count(blocks, 'family', 'families')}." if friedman["families"] else "."
    counted = _count(blocks, "family", "families") if friedman["families"] else _count(blocks, "dataset")
    floors = results["floors"]
    floor = min(floors["permutation_pairs"], floors["permutation_baseline"] if baseline is not None else 1.0)
    if floor >= alpha:
        return [
            asked,
            f"No conclusion: with {counted} and {n} algorithms no pair can differ at alpha = {alpha:g}, whatever the scores "
            f"(smallest possible p = {tables.format_p(floor)}). Add datasets; more runs do not help.",
            *_skillings_mack(results),
        ]
    shown, kind = friedman["p"] < alpha, "exact" if friedman["p_method"] == "exact" else "permutation"
    omnibus = "The algorithms do not all perform alike" if shown else "No difference among the algorithms is shown"
    lines = [asked] + [f"{omnibus} ({kind} Friedman test, p = {tables.format_p(friedman['p'])}, alpha = {alpha:g})."] * (n > 2)
    claims = []
    if baseline is not None and n > 2:
        table = results["baseline_comparisons"]
        claims = _found(table, "p_permutation", alpha)
        lines += _against(table, "p_permutation", baseline, alpha)
    pairs = results["pairs"]
    all_claims = _found(pairs, "p_permutation", alpha)
    lines.append(_all_pairs(pairs, all_claims, alpha, len(pairs)))
    lines += _firm(results, claims or all_claims[:3])
    lines += _skillings_mack(results) + _needed(results, claims, all_claims)
    if len(all_claims) < len(pairs):
        few = f" {counted} are too few to take anything for equality." if blocks < ranks.FEW_BLOCKS else ""
        lines.append(f"A difference that is not shown is not equality.{few}")
    return lines


def _these_datasets(results: dict) -> list[str]:
    these, alpha, baseline = results["these_datasets"], results["alpha"], results["baseline"]
    asked = "Asked: do the algorithms differ on these datasets, had other runs been trained?"
    if these is None:
        return [asked, "No conclusion: every algorithm has one run, and nothing tells how far other runs would differ. Train more runs."]
    table = these["datasets"]
    differ = table.loc[table["p_holm"] < alpha, "dataset"].tolist()
    named = f": {_listed(differ)}" if 0 < len(differ) < len(table) else ""
    test = table["test"].iloc[0]
    lines = [
        asked,
        f"On {len(differ)} of {_count(len(table), 'dataset')} they differ ({test} by permutation, Holm over datasets){named}.",
    ]
    floors = these["floors"]
    if floors["datasets"] >= alpha:
        lines = [asked, f"On no dataset can so few runs show a difference{_least(floors['datasets'])}."]
    if these["baseline_comparisons"] is not None and floors["baseline_comparisons"] < alpha:
        lines += _against(these["baseline_comparisons"], "p_holm", baseline, alpha, " over all datasets together")
    if these["pairs"] is not None and floors["pairs"] < alpha:
        found = _found(these["pairs"], "p_holm", alpha)
        lines.append(_all_pairs(these["pairs"], found, alpha, len(these["pairs"])))
    elif these["pairs"] is not None:
        lines.append(f"No conclusion on pairs: so few runs can show none to differ{_least(floors['pairs'])}. Train more runs.")
    lines.append("This says nothing about other datasets.")
    return lines


def _least(p: float) -> str:
    return f", whatever the scores (smallest possible p = {tables.format_p(p)})"


def _as_published(results: dict) -> list[str]:
    paper, alpha = results["paper"], results["alpha"]
    p = paper["nemenyi"]
    names = results["algorithms"]
    found = [(i, j) for place, i in enumerate(names) for j in names[place + 1 :] if p[i][j] < alpha]
    degrees = ", ".join(f"{value:.2f}" for value in paper["degrees_of_freedom"])
    listed = "; ".join(f"{i} - {j} (p = {p[i][j]:.3f})" for i, j in found)
    return [
        f"As published, not as it should be done: F = {paper['f']:.2f}, p = {paper['p']:.2g} (d.o.f. {degrees}).",
        f"Nemenyi: {_count(len(found), 'pair differs', 'pairs differ')} at alpha = {alpha:g}" + (f": {listed}." if found else "."),
    ]


def _skillings_mack(results: dict) -> list[str]:
    found = results["missing_cells"]
    if found is None:
        return []
    p = f"p = {tables.format_p(found['p'])}"
    return [f"With the incomplete datasets too: Skillings-Mack {found['statistic']:.2f}, {p} ({found['n_datasets']} datasets)."]


def _found(table: "pd.DataFrame", column: str, alpha: float) -> list[tuple[str, str, float]]:
    """(better, worse, p) of the rows with p < alpha, smallest p first."""
    rows = table[table[column] < alpha].sort_values(column, kind="stable")
    i_better = rows["rank_difference"] < 0 if "rank_difference" in rows else rows["difference"] > 0
    pairs = zip(rows["algorithm_i"], rows["algorithm_j"], rows[column], i_better, strict=True)
    return [(i, j, p) if better else (j, i, p) for i, j, p, better in pairs]


def _against(table: "pd.DataFrame", column: str, baseline: str, alpha: float, where: str = "") -> list[str]:
    found, count = _found(table, column, alpha), len(table)
    family = f"{_count(count, 'comparison')}, alpha = {alpha:g}"
    if not found:
        least = tables.format_p(table[column].min())
        return [f"No algorithm differs from {baseline}{where} ({family}, smallest p = {least})."]
    lines = []
    for word, place in (("better", 1), ("worse", 0)):
        names = [f"{claim[1 - place]} (p = {tables.format_p(claim[2])})" for claim in found if claim[place] == baseline]
        lines += [f"{_word(len(names))} {word} than {baseline}{where} ({family}): {_listed(names)}."] if names else []
    return lines


def _all_pairs(table: "pd.DataFrame", found: list[tuple], alpha: float, count: int) -> str:
    if not found and count > 1:
        return f"No pair differs at alpha = {alpha:g}."
    if not found:
        p = table.filter(["p_permutation", "p_holm"]).iloc[0, 0]
        return f"The two algorithms are not shown to differ (p = {tables.format_p(p)}, alpha = {alpha:g})."
    listed = [f"{better} better than {worse} (p = {tables.format_p(p)})" for better, worse, p in found]
    head = f"Of all {count} pairs, adjusted for all, {len(found)} differ{'s' * (len(found) == 1)}" if count > 1 else "They differ"
    return f"{head}: {_listed(listed)}."


def _firm(results: dict, claims: list[tuple]) -> list[str]:
    """How often each claim comes out with other runs and under other choices."""
    lines, multiverse, stability = [], results["multiverse"], results["stability"]
    pairs, alpha = results["pairs"], results["alpha"]
    counts = multiverse["pairs"].set_index(["algorithm_i", "algorithm_j"])
    for better, worse, _ in claims[:3]:
        turned = (better, worse) not in counts.index
        row = counts.loc[(worse, better) if turned else (better, worse)]
        found, tried = int(row["j_better" if turned else "i_better"]), int(row["specifications"])
        parts = [f"in {found} of {tried} specifications (other rules, runs, datasets, tests)"]
        planned = results["baseline"] in (better, worse)
        if stability and stability["pairs"] is not None:
            table = stability["baseline_comparisons" if planned and len(pairs) > 1 else "pairs"]
            share = table.loc[_is_pair(table, better, worse), "significant"].iloc[0]
            parts.insert(0, f"in {share:.0%} of resamples of the runs")
        lines.append(f"{better} over {worse} is significant {' and '.join(parts)}.")
        p = pairs.loc[_is_pair(pairs, better, worse), "p_permutation"].iloc[0]
        if planned and p >= alpha:
            adjusted = f"Adjusted for all {len(pairs)} pairs it is not (p = {tables.format_p(p)})"
            lines.append(f"{adjusted}: it counts only if {results['baseline']} was the baseline from the start.")
    return ["How firm: " + " ".join(lines)] if lines else []


def _needed(results: dict, claims: list[tuple], all_claims: list[tuple]) -> list[str]:
    """Datasets for 80 % power: the best algorithm against the baseline, or against the second."""
    power, baseline, m = results["power"], results["baseline"], len(results["datasets"])
    if power is None or results["friedman"]["families"]:  # it takes datasets for independent
        return []
    order = sorted(results["friedman"]["mean_ranks"].items(), key=lambda item: (item[1], item[0]))
    better, other = (order[0][0], order[1][0]) if baseline is None or order[0][0] == baseline else (order[0][0], baseline)
    test = "control_holm" if other == baseline else "nemenyi"
    table = power["datasets_needed"]
    needed = table.loc[(table["test"] == test) & _is_pair(table, better, other), "datasets"].iloc[0]
    if needed <= m:
        return []
    count = f"about {needed:g} datasets like these ({needed - m:g} more)" if needed == needed else "more than 60 datasets like these"
    shown = any({better, other} == {i, j} for i, j, _ in claims + all_claims)
    text = f"To show {better} better than {other} in 80 % of such studies, {count} would be needed"
    text += ", so another study of this size may well miss it" if shown else ""
    return [f"{text}, if the estimated differences are the true ones."]


def _is_pair(table: "pd.DataFrame", first: str, second: str) -> "pd.Series":
    i, j = table["algorithm_i"], table["algorithm_j"]
    return ((i == first) & (j == second)) | ((i == second) & (j == first))


def _listed(names: list[str]) -> str:
    return "; ".join(names[:MOST]) + (f"; and {len(names) - MOST} more" if len(names) > MOST else "")


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _word(count: int) -> str:
    return "One algorithm is" if count == 1 else f"{count} algorithms are"
