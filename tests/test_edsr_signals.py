"""How often DeepAugment distorts what passes through EDSR, and in which way."""

import numpy as np
import pytest

from jaxbed.data.deepaugment import edsr_signals
from jaxbed.models import edsr


def test_draws_of_signals():
    rng, draws = np.random.default_rng(0), 12_000
    signals, names = zip(*(edsr_signals.draw_signal(rng) for _ in range(draws)), strict=True)
    swapped = np.array([(signal.source != np.arange(64)).any() for signal in signals])
    noise, middle = (np.array([getattr(signal, name) for signal in signals]) for name in ("noise", "middle"))
    kept = np.stack([signal.kept for signal in signals])
    skipped = ~kept.all(1)

    def assert_rate(happened, chance, of=draws):
        assert abs(np.sum(happened) / of - chance) < 5 * (chance * (1 - chance) / of) ** 0.5

    assert_rate(swapped, 1 / 4)
    for number, chance in enumerate((1 / 2, 1 / 4, 1 / 4)):
        assert_rate(noise == number, chance)
    heads = np.where(swapped, "swap", np.array(edsr.NOISES)[noise])
    bodies = np.where(skipped, "skip", np.array(edsr.MIDDLES)[middle])
    assert list(names) == list(zip(heads, bodies, strict=True))
    assert not (swapped & (noise > 0)).any() and not (skipped & (middle > 0)).any()
    chances = {"negate": 1 / 5, "relu": 1 / 15, "gelu": 2 / 15, "flip_height": 1 / 15, "flip_width": 2 / 15, "none": 2 / 5}
    for name, chance in chances.items():
        assert_rate(middle == edsr.MIDDLES.index(name), chance)
    assert_rate(skipped, 1 / 5)
    assert_rate(~skipped & (middle == 0) & ~swapped & (noise == 0), 1 / 20)
    assert (kept[skipped].sum(1) == 1).all()
    for layer, chance in ((16, 14**3), (15, 14**3 - 13**3), (14, 14**3 - 2 * 13**3 + 12**3)):  # .813, .162, .023
        assert_rate(kept[skipped, layer], chance / 15**3, skipped.sum())
    assert kept[skipped, 13:].any(1).all() and len({int(signal.seed) for signal in signals}) > draws - 10


def test_intended_signals_swap_and_skip():
    rng = np.random.default_rng(0)
    signals = [edsr_signals.draw_signal(rng, "intended", 8, 5)[0] for _ in range(400)]
    assert all((np.sort(signal.source) == np.arange(8)).all() for signal in signals)
    assert {int((~signal.kept).sum()) for signal in signals} == {0, 1, 2, 3}
    assert all(signal.kept[:2].all() and signal.kept.shape == (6,) for signal in signals)
    assert not np.all([signal.kept for signal in signals], axis=0)[2:].any()  # each of the others is skipped at times
    faithful = [edsr_signals.draw_signal(rng, width=4, blocks=1)[0] for _ in range(100)]
    assert {tuple(signal.kept.tolist()) for signal in faithful} == {(True, True), (True, False)}
    assert any(len(set(signal.source.tolist())) < 4 for signal in faithful)
    with pytest.raises(ValueError, match=r"mode = 'fixed' .* must be faithful"):
        edsr_signals.draw_signal(rng, "fixed")


def test_a_faithful_swap_overwrites_one_channel():
    pairs = np.array([(0, 3)])
    assert edsr_signals._exchanged(np.arange(4), pairs, "faithful").tolist() == [3, 1, 2, 3]
    assert edsr_signals._exchanged(np.arange(4), pairs, "intended").tolist() == [3, 1, 2, 0]
    assert edsr_signals._exchanged(np.arange(3), np.array([(0, 1), (2, 0)]), "faithful").tolist() == [1, 1, 1]
