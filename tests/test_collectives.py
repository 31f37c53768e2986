"""How often devices wait for each other in a step does not grow with their number; the model that follows from it."""

import dataclasses
import math
import sys

import pytest
import tiny
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import collectives

LINE = (
    "  %sum.1 = (f32[2,3]{1,0}, bf16[4]{0}) all-reduce(%a, /*index=1*/%b.2), channel_id=1, "
    'metadata={op_name="stem_norm/reduce_sum:head/dot_general"}'
)
TEXT = f"""
  %a = f32[2,3]{{1,0}} parameter(0)
  %b.2 = bf16[4]{{0}} add(%c, %c)
{LINE}
  %whole = f32[16]{{0}} all-gather(%b.2), dimensions={{0}}
  ROOT %started = f32[] all-reduce-start(%d)
  %d = f32[] constant(0)
  %ended = f32[] all-reduce-done(%started)
  %fusion = f32[4] fusion(%whole), calls=%all-reduce.3
"""


def test_collectives_are_read_with_the_bytes_of_their_operands():
    assert collectives.collectives(TEXT) == [
        ("all-reduce", 32, ["stem_norm/reduce_sum", "head/dot_general"]),
        ("all-gather", 8, []),
        ("all-reduce", 4, []),
    ]


def test_efficiency_is_that_of_a_ring():
    waits, link = collectives.Waits(10, 100_000_000), collectives.Link(50.0, 20.0)
    assert math.isclose(collectives.efficiency(waits, 64, link, 34.9), 34.9 / (34.9 + 2 * 63 / 64 * 2.0 + 0.2))
    assert collectives.efficiency(collectives.Waits(0, 0), 64, link, 34.9) == 1


def test_waits_of_resnet50():
    gradients, moments, metrics = 25_557_032, 2 * 26_560, 2  # torchvision's counts
    assert collectives.expected("seed", collectives.RESNET50, 1000) == (0, 0)
    assert collectives.expected("groups", collectives.RESNET50, 1000) == (2, 4 * (gradients + moments + metrics))
    assert collectives.expected("whole", collectives.RESNET50, 1000) == (99, 4 * (gradients + moments + metrics))


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_devices_wait_once_for_each_other_however_many_they_are(devices):
    assert collectives.counted("groups", devices, tiny.RESNET_4) == collectives.expected("groups", tiny.RESNET_4, 4)


@pytest.mark.slow
@pytest.mark.parametrize("layout", collectives.LAYOUTS)
@pytest.mark.parametrize("net", [collectives.NARROW, dataclasses.replace(collectives.RESNET50, width=4, stem="half")])
def test_the_model_counts_what_is_compiled(layout, net):
    counted, expected = collectives.counted(layout, 8, net), collectives.expected(layout, net, 4)
    assert counted.bytes == expected.bytes
    alone = layout == "whole" and net.depth == 50  # the compiler leaves one sum of gradients by itself there
    assert counted.count == expected.count + alone


@pytest.mark.slow
def test_waits_do_not_grow_with_devices(capsys):
    rows = collectives.main([])  # which compares each with `expected`
    assert [(each["devices"], each["layout"]) for each in rows] == [(n, name) for n in (8, 64, 256) for name in collectives.LAYOUTS]
    for layout in collectives.LAYOUTS:
        waits = {(each["count"], each["bytes"]) for each in rows if each["layout"] == layout}
        assert waits == {collectives.expected(layout, collectives.NARROW, 4)}
    assert not [each for each in rows if each["layout"] == "seed" and each["count"]]  # nothing crosses rows of seeds
    assert all(each["kinds"] == (["all-reduce"] if each["count"] else []) for each in rows)
    assert len(capsys.readouterr().out.splitlines()) == 11


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "8,1"], "--devices must be at least 2"),
        (["--bandwidth", "900"], "--bandwidth and --latency are two numbers"),
        (["--bandwidth", "900,0"], "bandwidths and --compute-ms must be above 0"),
        (["--torus-latency", "-1"], "latencies 0 or more"),
    ],
)
def test_what_cannot_be_modelled_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        collectives.main(arguments)
    assert message in capsys.readouterr().err


def test_a_rule_that_is_out_of_date_is_told(monkeypatch):
    monkeypatch.setattr(collectives, "simulated", lambda devices: {"groups": [{"kind": "all-reduce", "bytes": 8, "summed": []}]})
    with pytest.raises(ValueError, match=r"groups on 8 devices: Waits\(count=1, bytes=8\) is not"):
        collectives.main(["--devices", "8"])


def test_bytes_of_types():
    assert collectives.size("(f32[1,4]{1,0}, /*index=1*/bf16[], pred[3]{0})") == 16 + 2 + 3
