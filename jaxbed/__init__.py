"""jaxbed: train debiasing methods with many seeds at once, and say with sound statistics what is really better.

    python -m jaxbed.main --config=sagnet               train, evaluate every epoch on every set, print the scores
    jaxbed train | eval | measure | ...                  the same and its parts, and what comes after, see `cli`

main, cli, command_line   the commands, and what their words mean
config, values            what a run is made of, and what its fields can hold
settings                  in which settings two saved runs differ; without JAX
method                    what a method is: three pure functions for one seed and one batch
stages                    methods that train in several stages
presets/                  settings that runs start with: those of a data set, and those published for a method on it
optim                     optimizers and schedules
parallel                  seeds and devices: alone knows how many there are of either

methods/                  one file a method; parts/: losses, relative difficulty, groups, partners to mix with
models/                   networks, what each offers to methods (capabilities), their layers, readers and converters of published weights
data/                     data sets, streams, augmentation
training/                 the loop (train), compiled steps (program), what a method must give (contract), devices that share a batch
                          (sharing), checkpoints, stages that come before a run (plan, staged), pretrained weights, members of an
                          array, signals (preemption), lock, log, random keys
evaluation/               answers of every epoch's checkpoint (evaluate), their files, decision rules, measures, tables of scores (metrics),
                          a network in Python (trained)
measures/                 what a network leans on: `jaxbed measure` (main), changed images and their answers; has an index of its own
tuning/                   grids of settings (sweep), and how separate runs are launched
stats/                    from scores to what may be claimed; has an index of its own
system/                   files, memory, caches, how a process ends; several processes of one run (processes, watch, coordinator, starter)

What a run leaves is read by the next program as files: checkpoints by evaluation, answers by statistics, which never imports JAX.
"""

__version__ = "0.1.0"
