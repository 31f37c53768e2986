"""report.html: its text, and its behaviour in a real browser (Chromium through its debugging pipe; skipped where there is none)."""

import base64
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from jaxbed.stats.figures.drawing import Figure
from jaxbed.stats.output import html

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NASTY = "<script>alert(1)</script> & \"'"
SVG = '<svg width="500pt" height="40pt" viewBox="0 0 500 40"><path id="f-a" d="M0 0L500 40" style="stroke: var(--ink, #1c2128)"/></svg>'


def document(rows: int = 4, columns: int = 3) -> html.Document:
    wide = pd.DataFrame({f"a long heading {place}": np.arange(rows) * 1.25 + place for place in range(columns)})
    scores = pd.DataFrame(
        {
            "algorithm": ["erm", "sagnet", "lff", "padain", "rebias"],
            "score": [html.Cell("9.5 ± 0.1"), html.Cell("63.2 ± 0.2", "best in-distribution"), None, html.Cell("9.5 ± 2.0"), "100.0"],
            "p": [0.04, 1e-13, float("nan"), 2.2e-6, 1.0],
            "run": ["run 10", "run 9", "run 1", None, "run 2"],
        }
    )
    sections = [
        html.Section("Scores", [NASTY], [(f"Scores {NASTY}", scores), ("Wide", wide)], [Figure("f", NASTY, SVG, [])]),
        html.Section("Pairs", [], [], []),
    ]
    warnings = [{"code": "FRAGILE", "text": f"pair {place} {NASTY}", "cure": "Train more runs."} for place in range(5)]
    return html.Document(
        NASTY, ["No algorithm differs.", NASTY], sections, [*warnings, {"code": "TIES", "text": "ties"}], {"command": NASTY}
    )


class Outline(HTMLParser):
    """What the tests ask of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.stack, self.ids, self.headings, self.tags, self.links = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes[name] for name in ("href", "src", "xlink:href") if name in attributes]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in ("meta", "link"):
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def test_page_is_well_formed_escaped_and_self_contained():
    text = html.page(document())
    outline = Outline(text)
    assert outline.stack == []
    assert text.startswith("<!DOCTYPE html>") and '<html lang="en">' in text
    assert len(set(outline.ids)) == len(outline.ids)
    assert outline.headings[0] == 1 and outline.headings.count(1) == 1 and set(outline.headings[1:]) == {2}
    assert [tag for tag, _ in outline.tags].count("script") == 1  # ours
    assert "<script>alert" not in text
    assert all(link == "data:," or link[1:] in outline.ids for link in outline.links)
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert [tag for tag, _ in outline.tags].count("caption") == 2
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in outline.tags if tag == "th")
    assert text == html.page(document())


def test_verdict_then_warnings_then_sections_and_the_facts_last():
    text = html.page(document())
    order = ["<h1>", "<p>No algorithm differs.", "<p>pair 0", "Train more runs.", "<p>ties", "<h2>Scores", "<h2>Pairs", "<dt>command"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert text.count("Train more runs.") == 1  # once for all warnings with this cure
    assert "<summary>2 more</summary>" in text
    plain = html.page(document()._replace(warnings=[]))
    assert "Warnings" not in plain and 'href="#section-2">Pairs' in plain and '<section id="section-2">\n<h2>Pairs' in plain


def body(frame: pd.DataFrame) -> str:
    return html.table("caption", frame).split("<tbody>")[1]


def test_numbers_are_written_with_the_decimals_they_need():
    frame = pd.DataFrame(
        {
            "n": [1, 2],
            "rank": [5.4, 2.75],
            "share": [0.123456, 0.9],
            "tiny": [1.5e-7, 2.0],
            "p_exact": [0.04567, 1e-20],
            "f": [float("inf"), 3.0],
            "ok": [True, False],
        }
    )
    written = re.findall(r">([^<\n]+)</t[dh]>", body(frame))
    assert written == "1 5.40 0.1235 1.5e-07 0.046 ∞ yes 2 2.75 0.9000 2 &lt;1e-12 3 no".split()


def test_columns_of_numbers_carry_full_values_to_sort_by_and_others_do_not():
    frame = pd.DataFrame(
        {
            "score": [html.Cell("63.2 ± 0.2"), html.Cell("−1.5*"), "<1e-12", None],
            "name": ["1 run", "ImageNet1k", "3x3", ""],
            "full": [0.123456789, 1.0, float("inf"), float("nan")],
        },
        index=pd.Index(["a", "b", "c", "d"], name="algorithm"),
    )
    assert re.findall(r'data-sort="([^"]*)"', body(frame)) == ["63.2", "0.123456789", "-1.5", "1.0", "1e-12", "Infinity"]
    assert body(frame).count("data-missing") == 3
    assert '<th scope="row">a</th>' in body(frame)
    heads = '<th scope="col">algorithm</th><th scope="col" class="number">score</th><th scope="col">name</th>'
    assert heads in html.table("caption", frame)


def test_key_explains_the_marks_that_are_used():
    assert 'class="key"' not in body(pd.DataFrame({"a": [1]}))
    assert "bold: best in its column" in body(pd.DataFrame({"a": [html.Cell("1", "best")]}))


# ---- in a browser


class Browser:
    """Chromium, driven by DevTools messages over pipes: its file descriptors 3 and 4, messages ended by a zero byte."""

    def __init__(self, folder):
        read_theirs, write_ours = os.pipe()
        read_ours, write_theirs = os.pipe()
        options = f"--headless --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir={folder}/profile about:blank"
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {CHROMIUM} {options} 3<&{read_theirs} 4>&{write_theirs}"],
            pass_fds=(read_theirs, write_theirs),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_theirs)
        os.close(write_theirs)
        self.to, self.back = os.fdopen(write_ours, "wb"), os.fdopen(read_ours, "rb")
        self.sent, self.events, self.session, self.rest = 0, [], None, b""
        target = next(one for one in self("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self.session = self("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters) -> dict:
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": parameters}
        self.to.write(json.dumps(message | ({"sessionId": self.session} if self.session else {})).encode() + b"\0")
        self.to.flush()
        while (answer := self._next()).get("id") != self.sent:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> dict:
        while b"\0" not in self.rest:
            chunk = self.back.read1(1 << 16)
            assert chunk, "Chromium ended"
            self.rest += chunk
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def open(self, path, width: int = 1200, dark: bool = False) -> None:
        self.events.clear()
        self("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", media="", features=[scheme])
        self("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, script: str):
        result = self("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str, code: str, number: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self("Input.dispatchKeyEvent", type=kind, key=key, code=code, windowsVirtualKeyCode=number, **typed)

    def close(self) -> None:
        self("Browser.close")
        self.process.wait()
        self.to.close()
        self.back.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    started = Browser(tmp_path_factory.mktemp("browser"))
    yield started
    started.close()


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "report.html"
    file.write_text(html.page(document(rows=30, columns=30)), encoding="utf-8")
    return file


FIRST_COLUMN = "[...document.querySelector('table').tBodies[0].rows].map(row => row.cells[0].textContent).join(' ')"
SORTED = "[...document.querySelector('table').tHead.rows[0].cells].map(head => head.getAttribute('aria-sort'))"


HEADS = ["algorithm", "score", "p", "run"]


def click(browser, column: int) -> tuple[str, list]:
    browser.value(f"document.querySelectorAll('th button')[{column}].click()")
    return browser.value(FIRST_COLUMN), browser.value(SORTED)


def test_no_errors_in_the_console(browser, path):
    browser.open(path)
    bad = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
    assert [event for event in browser.events if event.get("method") in bad] == []
    assert browser.value("document.compatMode") == "CSS1Compat"
    assert browser.value("[...document.querySelectorAll('th button')].slice(0, 4).map(head => head.innerText)") == HEADS


def test_a_click_sorts_up_then_down_stable_and_missing_values_last(browser, path):
    browser.open(path)
    assert click(browser, 1) == ("erm padain sagnet rebias lff", [None, "ascending", None, None])  # 9.5 9.5 63.2 100 -
    assert click(browser, 1) == ("rebias sagnet erm padain lff", [None, "descending", None, None])
    assert click(browser, 2) == ("sagnet padain erm rebias lff", [None, None, "ascending", None])  # by the p-values, not their texts
    assert click(browser, 3) == ("lff rebias sagnet erm padain", [None, None, None, "ascending"])  # run 1, 2, 9, 10, -
    assert click(browser, 0) == ("erm lff padain rebias sagnet", ["ascending", None, None, None])


def test_sorting_by_keyboard(browser, path):
    browser.open(path)
    browser.value("document.querySelector('th button').focus()")
    browser.press("Tab", "Tab", 9)
    browser.press("Enter", "Enter", 13, "\r")
    assert browser.value(SORTED) == [None, "ascending", None, None]
    browser.press(" ", "Space", 32, " ")
    assert browser.value(SORTED) == [None, "descending", None, None]
    assert browser.value(FIRST_COLUMN) == "rebias sagnet erm padain lff"


@pytest.mark.parametrize("width", [320, 375, 800, 1600])
def test_only_the_boxes_of_tables_and_figures_scroll_sideways(browser, path, width):
    browser.open(path, width)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("innerWidth") == width  # a phone widens the page where something juts out
    wide = browser.value("[...document.querySelectorAll('.scroll, figure > div')].map(box => box.scrollWidth > box.clientWidth)")
    assert [wide[0], wide[2]] == [width < 700, True]  # the figure, then the second table, which is wider than any page


def test_figures_and_text_change_with_the_colour_scheme(browser, path):
    found = []
    for dark in (False, True):
        browser.open(path, dark=dark)
        text = browser.value("getComputedStyle(document.body).color")
        line = browser.value("getComputedStyle(document.querySelector('figure path')).stroke")
        assert text == line
        found.append(text)
    assert found[0] != found[1]


def test_printing_gives_a_light_pdf_with_everything_unfolded(browser, path):
    browser.open(path, dark=True)
    pdf = base64.b64decode(browser("Page.printToPDF", printBackground=True)["data"])
    assert pdf.startswith(b"%PDF-") and len(pdf) > 5000
    assert browser.value("[...document.querySelectorAll('details')].every(part => part.open)")
    browser("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert browser.value("getComputedStyle(document.body).color") == "rgb(28, 33, 40)"


def test_figures_come_before_tables_and_raw_tables_are_folded(browser, tmp_path):
    raw = pd.DataFrame({"pair": ["a – b"] * 28, "p": [0.5] * 28})
    section = html.Section("Pairs", [], [("Short", raw[:3])], [Figure("f", "a figure", SVG, [])], [("All pairs", raw)])
    made = html.Document("t", ["Question: is there a difference?", "No.", "A remark."], [section], [], {})
    (tmp_path / "page.html").write_text(html.page(made), encoding="utf-8")
    browser.open(tmp_path / "page.html")
    tops = "[...document.querySelectorAll('section figure, section table')].map(part => part.getBoundingClientRect().top)"
    figure, short, _ = browser.value(tops)
    assert figure < short
    heights = "[...document.querySelectorAll('section table')].map(part => part.checkVisibility())"
    assert browser.value(heights) == [True, False]
    browser.value("document.querySelector('summary').click()")
    assert browser.value(heights) == [True, True]
    weights = "[...document.querySelectorAll('.verdict p')].map(line => +getComputedStyle(line).fontWeight)"
    asked, answer, remark = browser.value(weights)
    assert asked == remark == 400 and answer >= 600


@pytest.mark.parametrize("width", [1280, 390])
def test_ten_datasets_fit_a_screen_and_a_phone_shows_numbers_beside_the_names(browser, tmp_path, width):
    datasets = [
        "ImageNet1k",
        "Silhouette",
        "Edge",
        "Sketch",
        "CueConflict",
        "ImageNetStylized",
        "ImageNetA",
        "ImageNetR",
        "DeepAugCAE",
        "C_ten",
    ]
    names = ["ERM", "DeepAugmentation_EDSR_long", "Stylized_ERM"]
    scores = pd.DataFrame({"algorithm": names} | {name: [html.Cell("73.8 ± 10.2")] * 3 for name in datasets})
    pairs = pd.DataFrame({"pair": [f"{names[1]} – {names[2]}"] * 3, "p, permutation test": [0.01] * 3, "p, z test, Holm": [0.5] * 3})
    made = html.Document("t", ["No."], [html.Section("Scores", [], [("Scores", scores), ("Pairs", pairs)], [])], [], {})
    (tmp_path / "page.html").write_text(html.page(made), encoding="utf-8")
    browser.open(tmp_path / "page.html", width)
    if width == 1280:
        assert browser.value("[...document.querySelectorAll('.scroll')].every(box => box.scrollWidth <= box.clientWidth)")
    for table in (0, 1):
        row = f"document.querySelectorAll('table')[{table}].tBodies[0].rows[1].cells"
        name, number = (browser.value(f"{row}[{place}].getBoundingClientRect().right") for place in (0, 1))
        assert name < number <= width - 10
        browser.value(f"document.querySelectorAll('.scroll')[{table}].scrollLeft = 400")
        assert browser.value(f"{row}[0].getBoundingClientRect().left") >= 0  # the names stay
