"""The style sheet and the script of report.html: light, dark, narrow and printed pages; tables that sort."""

CSS = """
:root { --paper: #fff; --ink: #1c2128; --quiet: #59616d; --line: #c4c9d1; --faint: #f3f5f7; --accent: #0059a6; --alarm: #a04000 }
@media screen { :root { color-scheme: light dark } }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #14171c; --ink: #e4e7eb; --quiet: #9ba4b0; --line: #434b57; --faint: #1e232a;
    --accent: #7db8f0; --alarm: #f0a868; --blue: #2f8fd6 }
}
* { box-sizing: border-box }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100% }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.5 system-ui, "Liberation Sans", sans-serif }
main { max-width: 76rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; overflow-wrap: break-word }
h1, h2 { line-height: 1.25; font-weight: 650; text-wrap: balance }
h1 { margin: 0 0 1.5rem; font-size: 1.75rem }
h2 { margin: 3.25rem 0 .75rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: 1.25rem }
p { max-width: 46rem; margin: .625rem 0 }
a { color: var(--accent); text-underline-offset: .15em }
.verdict { padding: .4rem 1.25rem; border-left: .25rem solid var(--accent); background: var(--faint) }
.answer { font-size: 1.125rem; font-weight: 600 }
.asked { color: var(--quiet) }
nav { margin-top: 1.75rem; font-size: .9375rem }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 0; padding: 0; list-style: none }
.warnings { max-width: 48rem; margin: 0; padding: 0; list-style: none }
.warnings > li { margin: 0 0 1rem; padding-left: 1rem; border-left: .1875rem solid var(--alarm) }
.warnings p { margin: 0 0 .15rem }
.code { color: var(--quiet); font: .8125rem/1.25rem ui-monospace, "Liberation Mono", monospace }
.cure { color: var(--quiet) }
details { margin: .15rem 0 }
summary { cursor: pointer; color: var(--accent) }
.hint, .key, caption, figcaption { color: var(--quiet); font-size: .875rem; line-height: 1.25rem }
.table { margin: 1.5rem 0 }
.key { margin: .375rem 0 0 }
.scroll, figure > div { overflow-x: auto;
  background: linear-gradient(var(--paper), var(--paper)) right / 2rem 100% no-repeat local,
    linear-gradient(to left, var(--line), transparent) right / .75rem 100% no-repeat scroll }
.scroll:has(tbody tr:nth-child(41)) { max-height: 40rem; overflow-y: auto }
table { min-width: min(100%, 24rem); border-collapse: separate; border-spacing: 0; font-size: .875rem; line-height: 1.25rem;
  font-variant-numeric: tabular-nums lining-nums }
caption { padding: 0 0 .375rem; text-align: left }
caption span { position: sticky; left: 0; display: inline-block; max-width: min(46rem, calc(100vw - 2.5rem)) }
th, td { padding: .3125rem .5rem; text-align: left; vertical-align: baseline; white-space: nowrap }
td.long { min-width: 20rem; white-space: normal }
thead th { position: sticky; top: 0; z-index: 1; background: var(--paper); font-weight: 600 }
thead th { white-space: normal; vertical-align: bottom }
thead th { border: 1px solid var(--ink); border-width: 1px 0 }
tbody th { font-weight: 400 }
tbody tr:last-child > * { border-bottom: 1px solid var(--ink) }
tr > :first-child { position: sticky; left: 0; padding-left: 0; background: var(--paper); white-space: normal; min-width: 9rem }
thead tr > :first-child { z-index: 2 }
tbody tr:hover > * { background: var(--faint) }
.number { text-align: right }
.best, .significant { font-weight: 700 }
.in-distribution { text-decoration: underline; text-underline-offset: .2em }
.grey { color: var(--quiet) }
th button { margin: 0; padding: 0; border: 0; background: none; color: inherit; font: inherit; text-align: inherit; cursor: pointer;
  position: relative; padding-right: .8em }
th button::after { content: "\\2195" / ""; position: absolute; right: 0; bottom: 0; color: var(--line) }
[aria-sort] button::after { content: "\\2191" / ""; color: var(--accent) }
[aria-sort="descending"] button::after { content: "\\2193" / "" }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
figure { margin: 2rem 0 }
figcaption { max-width: 46rem; margin-top: .5rem }
svg { display: block; height: auto; max-width: 100% }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) minmax(0, 1fr); gap: .25rem 1.25rem; font-size: .875rem }
dt { color: var(--quiet) }
dd { margin: 0; font: .8125rem/1.5rem ui-monospace, "Liberation Mono", monospace; white-space: pre-wrap; overflow-wrap: anywhere }
@media screen and (max-width: 40rem) {
  main { padding-top: 1.5rem }
  h1 { font-size: 1.5rem }
  tr > :first-child { min-width: 6.5rem; max-width: 10rem }
  tbody tr > :first-child { overflow-wrap: anywhere }
  svg { max-width: none; width: auto }
  dl { grid-template-columns: 1fr; gap: 0 }
  dd { margin-bottom: .6rem }
}
@media print {
  @page { margin: 16mm 14mm }
  body { font-size: 10pt }
  main { max-width: none; padding: 0 }
  nav, .hint, summary { display: none }
  h2 { margin-top: 1.5rem }
  h2, h2 + p, caption { break-after: avoid }
  h2 + p, figure, tr, .warnings > li, .table:not(:has(tr:nth-child(30))) { break-inside: avoid }
  .scroll, figure > div { overflow: visible; max-height: none !important; background: none }
  table { font-size: 7pt; line-height: 1.3 }
  th, td { padding: .125rem .25rem }
  thead th { white-space: normal }
  thead th, tr > :first-child { position: static }
  th button::after { content: none }
}
"""

# Sorts by data-sort, a number, in columns of numbers; else by the text. Missing values stay last; equal ones keep their order.
JS = """
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      const numeric = head.classList.contains("number");
      const key = row => numeric ? row.cells[column].dataset.sort : row.cells[column].textContent;
      const missing = row => row.cells[column].hasAttribute("data-missing");
      const compare = (a, b) => numeric ? key(a) - key(b) : key(a).localeCompare(key(b), "en", { numeric: true });
      const rows = [...body.rows].sort((a, b) => missing(a) - missing(b) || (missing(a) ? 0 : sign * compare(a, b)));
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      body.append(...rows);
    });
  });
}
document.querySelector(".hint")?.removeAttribute("hidden");
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(part => { part.open = true; }));
"""
