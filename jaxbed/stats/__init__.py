"""Statistics on recorded scores: which algorithm is really better, and how firm is that? Never imports JAX.

    jaxbed stats WORKDIR... [--select best_val] [--baseline erm] [--out DIR]
    jaxbed stats scores.csv [--exclude pAdaIN:2,5] [--datasets strict --roles roles.csv] [--question these-datasets] [--out DIR]

inputs                    everything that is given, under one set of names; what identifies each file
records, roles            files -> one tidy frame, checked; what the datasets are
delimited, columns        text files -> cells; which column is which, wide tables
names, numbers            one spelling for each name; numbers as people write them
trained_on                workdirs -> scores, and how their runs were trained
criteria, select          one epoch (or a mean of several) for every run, by a named rule
failures, missing_cells   runs that failed, cells that nobody measured
audit, printed, scales    can the scores be what they are said to be?
tables                    mean, std and runs per cell; CSV, LaTeX, text
new_datasets              question 1, would they differ on another dataset? ranks, permutation, pairwise, bayes, bradley_terry
these_datasets            question 2, do they on these, with other runs? per_dataset, divisions
stepwise                  pairs adjusted with their logic in mind: Shaffer, Bergmann-Hommel
choices                   question 1 under other choices. How firm: bootstrap, sensitivity, power
paper                     tests as BiasBed made them, to check its tables
analysis                  all of it: records -> everything found
claims                    what the verdict may claim: one family of comparisons
verdict, report           the words; text for a terminal
headings                  words for the columns of tables
groups                    algorithms of which no two differ: bars, letters
document, html            the page
figures                   figures_ranks, figures_scores: PDF, PNG, SVG; tikz
latex, listing            mean ranks and effect sizes as LaTeX; all tests as rows
files                     stats.json and all other files
options, main, progress   the command line
"""
