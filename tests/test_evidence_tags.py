"""In what the algorithms of a pair differ: one thing, or what PAIRS.csv names."""

import json

import pytest
from test_evidence import command, right_of, workdir

from jaxbed.stats.evidence import tags

ERM = {
    "method": {"is": "erm:Config"},
    "net": {"depth": 50},
    "data": {"train": "a", "side_px": 224, "augment": {"noise": "none"}},
    "optim": {"lr": 0.1},
    "epochs": 90,
    "seeds": 5,
    "may_change": ["data.train"],
}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"seeds": 1, "name": "another"}, []),
        ({"data": ERM["data"] | {"train": "b"}}, []),
        ({"data": ERM["data"] | {"side_px": 64}}, ["images"]),
        ({"data": ERM["data"] | {"augment": {"noise": "speckle"}}}, ["augmentation"]),
        ({"net": {"depth": 101}}, ["network"]),
        ({"method": {"is": "augmix:Config", "width": 3}}, ["method"]),
        ({"init_from": "runs/erm"}, ["start"]),
        ({"optim": {"lr": 0.2}, "epochs": 30}, ["schedule"]),
        ({"net": {"depth": 101}, "epochs": 30}, ["network", "schedule"]),
        ({tags.TRAINING_SET: "b"}, ["images"]),
        ({tags.TRAINING_SET: None}, []),
    ],
)
def test_each_setting_has_its_tag(changed, found):
    assert list(tags.differing(ERM | changed, ERM | {tags.TRAINING_SET: "a"})) == found


def test_a_data_set_within_another_has_the_same_tags():
    plain, noisy = (ERM | {"data": {"share": 0.5, "of": ERM["data"] | {"augment": {"noise": noise}}}} for noise in ("none", "speckle"))
    assert list(tags.differing(noisy, plain)) == ["augmentation"]


def test_what_runs_start_from_is_compared_by_its_settings(tmp_path):
    starts = {"a": ERM | {"seeds": 3}, "b": ERM | {"seeds": 5}, "c": ERM | {"epochs": 30}}
    for name, content in starts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content | {"name": name}))
    a, b, c = (ERM | {"init_from": str(tmp_path / name)} for name in starts)
    assert tags.differing(a, b) == {} and tags.differing(a, c) == {"start": ["init_from: epochs: 90 / 30"]}


@pytest.fixture
def three(tmp_path):
    """ERM, a method, and the method on a deeper network."""
    runs = {"erm": {}, "mix": {"method": {"is": "mix:Config"}}, "deep": {"method": {"is": "mix:Config"}, "net": {"depth": 101}}}
    for name, changed in runs.items():
        path = workdir(tmp_path / name, {"iid": ("test", right_of(60, 0.7, (3, 5))), "art": ("ood", right_of(60, 0.5, (3, 5)))}, name)
        (path / "config.json").write_text(json.dumps(ERM | changed | {"name": name}))
    return [tmp_path / name for name in runs]


def test_a_pair_that_differs_in_several_things_is_refused_unless_all_are_named(three, tmp_path, capsys):
    pairs = tmp_path / "pairs.csv"

    def asked(table):
        pairs.write_text(table)
        return command(capsys, *three, "--pairs", pairs)

    code, said = asked("hypothesis,treated,control\naugmented,mix,erm\ndeeper,deep,mix\n")
    assert code == 0 and "differ in" not in said, said
    code, said = asked("hypothesis,treated,control\naugmented,mix,erm\naugmented,deep,erm\n")
    assert code == 2 and "line 3: treated and control differ in network (net.depth: 101 / 50); method (method.is: mix:Config / " in said
    assert "write network method in a column differs" in said
    code, said = asked("hypothesis,treated,control,differs\naugmented,deep,erm,method\n")
    assert code == 2 and "line 2: treated and control differ in network" in said
    code, said = asked("hypothesis,treated,control,differs\naugmented,deep,erm,network method\n")
    assert code == 0 and "note: pairs that differ in network, method, as pairs.csv says: deep / erm" in said
    code, said = asked("hypothesis,treated,control,differs\naugmented,deep,erm,colour\n")
    assert (
        code == 2 and "differs 'colour': write what the pair differs in, of augmentation, images, network, method, start, schedule" in said
    )
