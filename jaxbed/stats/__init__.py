"""Statistics on recorded scores: which algorithm is really better, and how firm is that? Never imports JAX.

    jaxbed stats WORKDIR... [--select best_val] [--baseline erm] [--out DIR]
    jaxbed stats scores.csv [--exclude pAdaIN:2,5] [--datasets strict --roles roles.csv] [--question these-datasets] [--out DIR]

main, options, progress   the command line
analysis                  records -> all results; nothing is read, printed or written here
new_datasets              question 1: would the algorithms differ on another data set?
these_datasets            question 2: do they differ on these data sets, with other runs?
missing_cells             data sets on which an algorithm has no run
claims, verdict           which comparisons the verdict may claim; the verdict and the warnings in words
tables                    mean, std and number of runs of each cell; how p-values and tables are formatted
names                     one spelling for each name; how messages quote names

reading/                  input files -> one tidy, checked table
    inputs                all inputs under one set of names; the SHA-256 of each file
    records, roles        scores; what the data sets are
    workdirs              scores of a workdir, and the settings of its runs
    delimited, columns    text files -> cells; which column is which, wide tables
    numbers               numbers as people write them
selection/                the epoch of each run that counts
    rules, criteria       the table of selection rules; what each computes
    failures              runs that diverged or ended early
audit/                    are the scores plausible?
    checks                all checks together; copied, mislabelled and frozen runs, selection on test data
    scales                values outside their scale, fractions next to percentages
    printed_tables        printed means against the runs they summarise; scores against the number of images
    provenance            runs that were trained on different data or tested on different images
comparisons/              hypothesis tests, effect sizes and posteriors, as functions of a table of scores
    ranks                 mean ranks, Friedman, Iman-Davenport, Quade, Nemenyi
    permutation           permutation tests of rank sums over data sets
    pairwise, stepwise    pairs: z, Conover, Wilcoxon, sign test, effect sizes, Holm; Shaffer, Bergmann-Hommel
    bayes, bradley_terry  Bayesian signed-rank test; Bradley-Terry models
    skillings_mack        Friedman's test with missing cells
    per_dataset           Kruskal-Wallis, Dunn, Cliff's delta on each data set
    run_permutations      p-values from runs reassigned among the algorithms
    published_tables      the tests as BiasBed computed them, to check its tables
    cliques               groups of algorithms without a significant difference
sensitivity/              how firm is the answer?
    bootstrap             resampled runs and data sets
    leave_one_out         one algorithm or data set left out
    multiverse            other selection rules, runs, data sets and tests
    power                 how many data sets or runs would be needed
correlations/             `jaxbed correlate`: biases of models and how they generalise
    main, models          the command line and what it writes; tables of models
    coefficients, study   Spearman's rho and how firm it is; all pairs and groups
    figures               matrices, and models as points
consistency/              `jaxbed consistency`: do networks and humans err on the same images?
    main, decisions       the command line and what it writes; decisions of workdirs and of published files, matched by image
    agreement, study      error consistency; all pairs, averaged in the published order
    figures               matrices, and lines by condition
evidence/                 `jaxbed evidence`: which hypotheses about distribution shift do answers support?
    main, report          the command line; what it prints and writes
    runs, published       answers of workdirs, pairs and margins; the paper's printed tables in place of answers
    resampling, line      hierarchical paired bootstrap; what a change of the IID score predicts
    effects, study        intervals, several pairs as one, decisions; every hypothesis on every set
    abstract, figures     abstract hypotheses; scores on shifted sets against IID scores
figures/                  drawing: which figures there are; rank_figures, score_figures, style, tikz
output/                   results as files
    destination           folders that are filled at once; the terminal
    files                 everything that is written; stats.json
    report                text for the terminal
    document, sections, sections_of_tests, html, html_style   report.html
    headings              readable column heads
    latex, listing        LaTeX tables; tests.csv

Imports point upwards in this order only: output and figures, analysis, the two questions, sensitivity, comparisons, selection, reading.
"""
