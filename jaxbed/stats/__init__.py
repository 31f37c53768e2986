"""Statistics on recorded scores: which algorithm is really better? Never imports JAX.

    jaxbed stats WORKDIR... [--select best_val] [--baseline erm] [--out DIR]
    jaxbed stats scores.csv [--exclude pAdaIN:2,5] [--datasets Edge,Sketch] [--out DIR]

records   paths -> one tidy frame, checked
select    frame -> one epoch (or the mean of the last n) for every run, by a named rule
tables    selected scores -> mean, std and runs per cell; CSV, LaTeX, plain text
ranks     algorithms x datasets -> Friedman, Iman-Davenport, Nemenyi
report    the results in plain words, the warnings, stats.json and the other files
main      the command line
"""
