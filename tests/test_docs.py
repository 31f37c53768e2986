"""The documentation is true: its commands are understood, the code of its pages on extending runs, its tables are those of the code."""

import contextlib
import functools
import importlib.util
import pathlib
import re
import runpy
import shlex
import sys

import pytest
from commands import ROOT

import jaxbed
from jaxbed import cli, command_line, config, main
from jaxbed.evaluation import decision_rules, measures
from jaxbed.measures import options as measuring
from jaxbed.methods import augmix, debiased, end, infodrop, lnl, mixstyle, rebias, rsc, sagnet
from jaxbed.models import resnet
from jaxbed.presets import datasets, published
from jaxbed.stats import main as statistics
from jaxbed.stats import new_datasets, options
from jaxbed.stats.comparisons import pairwise
from jaxbed.stats.consistency import main as consistency
from jaxbed.stats.correlations import main as correlations
from jaxbed.stats.evidence import main as evidence
from jaxbed.stats.evidence import report
from jaxbed.stats.figures import drawing
from jaxbed.stats.reading import columns, records
from jaxbed.stats.selection import rules
from jaxbed.tuning import grid, sweep
from jaxbed.values import look_up

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
EXTENDING = sorted((ROOT / "docs" / "extending").glob("*.md"))
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
TRAIN, EVAL, SWEEP = ("python", "-m", "jaxbed.main"), ("jaxbed", "eval"), ("jaxbed", "sweep")
STATS, CORRELATE, MEASURE = ("jaxbed", "stats"), ("jaxbed", "correlate"), ("jaxbed", "measure")
CONSISTENCY, EVIDENCE = ("jaxbed", "consistency"), ("jaxbed", "evidence")


def commands(text: str) -> list[list[str]]:
    """The words of every command in the bash blocks of a page, without assignments before it and loops around it."""
    found = []
    for language, _, code in BLOCK.findall(text):
        for line in code.replace("\\\n", " ").splitlines() if language == "bash" else ():
            for part in line.split(" && "):
                words = shlex.split(part, comments=True)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    del words[0]
                found += [words] if words else []
    return found


def id_of(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if page not in EXTENDING], ids=id_of)
def test_commands_are_understood(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in commands(page.read_text().replace("--config=$method:", "--config=erm:")):
        understand(words)


def understand(words: list[str]) -> None:
    """Raises, or ends the program, where a command has options that the program does not."""
    if words[:2] == ["jaxbed", "launch"]:
        assert words[2] == "--processes" and words[3].isdecimal() and words[4] == "--"
        words = words[5:]
    kinds = (TRAIN, STATS, CORRELATE, CONSISTENCY, EVIDENCE, MEASURE, EVAL, SWEEP)
    kind = next((kind for kind in kinds if tuple(words[: len(kind)]) == kind), None)
    rest = words[len(kind or ()) :]
    if kind == TRAIN:
        cfg = command_line.parse(rest).cfg
        if cfg.epochs:  # else it needs weights that may not be installed
            config.check(cfg)
    elif kind == STATS:
        options.check(options.parse(rest)[0])
    elif kind == CORRELATE:
        correlations.parse(rest)
    elif kind == CONSISTENCY:
        assert consistency.parse(rest).paths
    elif kind == EVIDENCE:
        evidence.parse(rest)
    elif kind == MEASURE:
        assert measuring.parse(rest).workdirs
    elif kind == EVAL:
        with pytest.raises(FileNotFoundError, match="is not the workdir of a run"):
            cli._evaluate(rest)
    elif kind == SWEEP:
        asked, given = sweep.parse(rest)
        cfg = command_line.parse([*given, "--workdir=DIR"]).cfg
        assert all(grid.parse(texts, cfg) for texts in asked.grid)
    elif re.match(r"(scripts|data_prep)/\w+\.py", "".join(words[1:2])) or words[0].startswith("./scripts/"):
        script = ROOT / (words[1] if words[0] == "python" else words[0])
        text = script.read_text()
        for word in words[2:]:
            name = word.partition("=")[0]
            assert not name.startswith("--") or name in text or name.startswith("--config."), f"{script} has no option {name}"
            if name.startswith("--config."):
                assert known(name.removeprefix("--config.")), word
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]), words[2]
    else:
        assert words[0] in OTHERS, f"what is {shlex.join(words)}?"


FASTER = ("--config.mesh.seed=1", "--config.mesh.data=1", "--config.eval.while_training=False")  # less to compile
NO_METHODS = ("__init__", "efficientnet_lite0", "network", "resnet50", "vit_b16")  # of the files in configs: published networks
OTHERS = ("pip", "for", "done", "python", "mkdocs", ".venv/bin/python", ".venv/bin/mkdocs", ".venv/bin/pip", ".venv/bin/pre-commit")


def known(field: str) -> bool:
    """Whether a configuration of some method and data set has the field."""
    for cfg in every():
        with contextlib.suppress(ValueError):
            look_up(cfg, field, field)
            return True
    return False


@functools.cache
def every() -> list[config.Train]:
    names = [path.stem for path in sorted(command_line.SHIPPED.glob("*.py")) if path.stem not in NO_METHODS]
    return [command_line.load(name) for name in [*names, *(f"erm:{name}" for name in datasets.SETTINGS)]]


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_settings_that_prose_names_exist(page):
    for field in set(re.findall(r"--config\.([a-z][\w.]*\w)", page.read_text())):
        assert known(field), f"{page}: --config.{field}"


@pytest.mark.parametrize("page", [page for page in EXTENDING if page.name != "index.md"], ids=lambda page: page.stem)
def test_code_on_extending_runs(page, tmp_path, monkeypatch, capsys):
    text = page.read_text()
    for _, name, code in BLOCK.findall(text):
        if name:
            (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module, name in ((rules, "RULES"), (pairwise, "TESTS"), (pairwise, "EFFECTS"), (new_datasets, "OVERALL")):
        monkeypatch.setattr(module, name, getattr(module, name))  # the page may set another one
    monkeypatch.setattr(decision_rules, "RULES", dict(decision_rules.RULES))
    monkeypatch.setattr(measures, "MEASURES", dict(measures.MEASURES))
    monkeypatch.setitem(resnet.BLOCKS, 10, (0, 0, 0, 0))  # less to compile, and to draw: no page is about either
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])
    before = set(sys.modules)
    try:
        for words in commands(text):
            assert run(words, monkeypatch) == 0, f"{shlex.join(words)}\n{capsys.readouterr().err}"
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command, in this process."""
    if tuple(words[:3]) == TRAIN:
        return main.main([*words[3:], *FASTER])
    if tuple(words[:2]) == STATS:
        return statistics.main(words[2:])
    if tuple(words[:2]) == EVAL:
        return cli.evaluate(words[2:])
    assert words[0] == "python", words
    monkeypatch.setattr(sys, "argv", words[1:])
    try:
        runpy.run_path(words[1], run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    return 0


def test_every_method_and_data_set_has_its_place():
    readme, methods, sets = ((ROOT / name).read_text() for name in ("README.md", "docs/methods/index.md", "docs/datasets.md"))
    for path in command_line.SHIPPED.glob("*.py"):
        if path.stem not in NO_METHODS:
            assert f"`{path.stem}`" in readme and f"`{path.stem}`" in methods, path.stem
    for name in datasets.SETTINGS:
        assert f"`{name}`" in readme and f"`{name}`" in sets, name


def test_published_settings_are_those_of_the_code(capsys):
    published.main()
    assert capsys.readouterr().out.strip() in (ROOT / "docs" / "methods" / "published.md").read_text()


METHODS_WITH_CHOICES = {  # in the documentation, a section of a method
    "InfoDrop": infodrop, "RSC": rsc, "Debiased": debiased, "SagNet": sagnet, "MixStyle": mixstyle, "EnD": end, "LNL": lnl,
    "ReBias": rebias, "AugMix": augmix,
}  # fmt: skip


def test_lists_of_choices_say_which_is_the_default():
    text, listed = "".join(path.read_text() for path in (ROOT / "docs" / "methods").glob("*.md")), set()
    for heading, section in re.findall(r"^## (.+)\n((?:(?!##? ).*\n)*)", text, re.MULTILINE):
        if fields := set(re.findall(r"^\* `(\w+)=\w+`", section, re.MULTILINE)):
            said, defaults = dict(re.findall(r"`(\w+)=(\w+)` \(default\)", section)), METHODS_WITH_CHOICES[heading].Config()
            assert said == {field: str(getattr(defaults, field)) for field in fields}, heading
            listed.add(heading)
    assert listed == set(METHODS_WITH_CHOICES)


def test_columns_of_scores_are_listed():
    text = (ROOT / "docs" / "statistics.md").read_text()
    assert [name for name in (*columns.SYNONYMS, *columns.GROUPS, *records.ROLES, *records.STATUSES) if f"`{name}`" not in text] == []


def test_decisions_about_hypotheses_are_listed():
    text = (ROOT / "docs" / "evidence.md").read_text()
    assert [symbol for symbol in report.OF_SYMBOLS if f"\n| {symbol or report.BLANK} | " not in text] == []


def test_selection_rules_and_options_of_the_statistics_are_listed():
    text = (ROOT / "docs" / "statistics.md").read_text()
    for rule in rules.RULES:
        assert f"`{rule.text}`" in text, rule.text
    flags = {flag for action in options._parser()._actions for flag in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) <= flags


def test_measures_and_decision_rules_are_listed():
    measured, sets = ((ROOT / "docs" / name).read_text() for name in ("measures.md", "datasets.md"))
    known = (*measures.MEASURES, *measures.CALIBRATION, *measures.ANOMALIES, *measures.MULTI_LABEL)
    assert [name for name in known if f"`{name}`" not in measured] == []
    assert [name for name in decision_rules.RULES if name.startswith("sixteen") and f"`{name}`" not in sets.replace("=six", "`six")] == []


@pytest.mark.parametrize("page", ["troubleshooting.md", "processes/index.md"])
def test_messages_that_are_explained_are_in_the_code(page):
    sources = "".join(path.read_text() for path in (ROOT / "jaxbed").rglob("*.py"))
    for row in re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / page).read_text().partition("| message |")[2], re.MULTILINE):
        for message in re.findall(r"`([^`]+)`", row):
            assert message in sources, message


def test_the_citation_names_this_version():
    assert f"\nversion: {jaxbed.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_readme_is_one_page():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 130
    assert sum(words[0].startswith("./scripts/") for words in commands(text)) == 2
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert link.startswith("https://") or (ROOT / link).exists(), link
