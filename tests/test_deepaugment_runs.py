"""Which images of DeepAugment share distorted weights, and which share a batch."""

import numpy as np

from jaxbed.data.deepaugment import runs


def test_runs_are_geometric_and_end_with_their_class():
    names = [f"{label:03}/{number}" for label in range(40) for number in range(1000)]
    labels = np.repeat(np.arange(40), 1000)
    drawn = runs.runs(names, labels, 0, "edsr", 0.05)
    np.testing.assert_array_equal(np.sort(np.concatenate(drawn)), np.arange(40_000))
    assert all(len(set(labels[run])) == 1 for run in drawn) and np.diff(labels[np.concatenate(drawn)]).min() == 0
    lengths = np.array([len(run) for run in drawn])
    expected = 40 + 40 * 999 * 0.05  # an image begins a run by its coin, or as the first one of its class
    assert abs(len(drawn) - expected) < 5 * (expected * 0.95) ** 0.5
    assert abs((lengths > 20).mean() - 0.95**20) < 0.05
    order = np.concatenate([run for run in drawn if labels[run[0]] == 0])
    assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.15
    assert [run.tolist() for run in drawn] != [run.tolist() for run in runs.runs(names, labels, 1, "edsr", 0.05)]
    assert [run.tolist() for run in drawn] != [run.tolist() for run in runs.runs(names, labels, 0, "cae", 0.05)]
    of_last = [[names[row] for row in run] for run in drawn if labels[run[0]] == 39]
    alone = runs.runs(names[39_000:], labels[39_000:] - 39, 0, "edsr", 0.05)
    assert [[names[39_000 + row] for row in run] for run in alone] == of_last  # whatever other classes there are
    assert [len(run) for run in runs.runs(names, labels, 0, "edsr", 0.0)] == [1000] * 40
    assert len(runs.runs(names, labels, 0, "edsr", 1.0)) == 40_000 and runs.runs([], labels[:0], 0, "edsr", 0.5) == []


def test_batches_share_few_canvases():
    assert [runs.canvas_px(*size) for size in ((128, 128), (128, 170), (192, 128), (512, 683), (128, 173), (512, 686))] == [
        (128, 128), (128, 176), (224, 128), (512, 688), (128, 176), (512, 688)
    ]  # fmt: skip
    sizes = np.array([(128, 170)] * 11 + [(170, 128)] * 2 + [(128, 900)] * 3)
    found = [(canvas, len(chosen)) for canvas, chosen in runs.batches(sizes, 8)]
    assert found == [((128, 176), 8), ((128, 176), 2), ((128, 176), 1), ((128, 944), 1), ((128, 944), 1), ((128, 944), 1), ((176, 128), 2)]
    assert sorted(index for _, chosen in runs.batches(sizes, 4) for index in chosen) == list(range(16))
    for height in range(20, 90):
        canvas = runs.canvas_px(height, 40)
        assert canvas[0] >= height and canvas[1] >= 40 and min(canvas) == min(height, 40) and max(canvas) < 2 * max(height, 40)
