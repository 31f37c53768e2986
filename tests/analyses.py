"""Analyses for tests of what is read, tested, said and written, in less time where such tests do not look at the numbers drawn."""

import contextlib
import functools
from collections.abc import Iterator

import pandas as pd
import pytest

from jaxbed.stats.comparisons import bayes, bradley_terry
from jaxbed.stats.sensitivity import multiverse


@contextlib.contextmanager
def of_few_draws() -> Iterator[None]:
    """Few draws of the Bayesian models, of the probability of a win and of the multiverse, and Python's strings, as in `jaxbed stats`.

    test_stats_models and test_stats_bradley_terry look at the numbers drawn; the multiverse's permutations are those of the main test.
    """
    with pytest.MonkeyPatch.context() as patch, pd.option_context("mode.string_storage", "python"):
        patch.setattr(bayes, "DRAWS", 2000)
        patch.setattr(multiverse, "DRAWS", 2000)
        patch.setattr(bradley_terry, "posterior", functools.partial(bradley_terry.posterior, chains=32, warm_up=30, length=60))
        patch.setattr(bradley_terry, "win_probabilities", functools.partial(bradley_terry.win_probabilities, draws=200))
        yield
