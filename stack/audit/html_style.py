"""The page's style and its one small script."""

STYLE = """
:root { --ink: #1c2733; --dim: #5b6875; --line: #d8dee5; --soft: #f4f6f8;
  --error: #b3261e; --warning: #9a6400; --note: #365f8c; --good: #1d6b3f; --bar: #5b84b1; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.5rem 4rem; color: var(--ink); background: #fff;
  font: 15px/1.5 system-ui, "Segoe UI", "Noto Sans", "Noto Sans CJK SC", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p { margin: .3rem 0 .6rem; }
.verdict { border-left: .4rem solid var(--good); background: var(--soft); padding: .9rem 1.1rem;
  margin: 1rem 0; font-size: 1.15rem; }
.verdict.bad { border-color: var(--error); }
.dim { color: var(--dim); }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; }
.tile { background: var(--soft); padding: .6rem 1rem; min-width: 8rem; }
.tile b { display: block; font-size: 1.5rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.brief { display: grid; grid-template-columns: 1fr 1fr; gap: 0 2.5rem; }
.brief li { margin-bottom: .45rem; overflow-wrap: anywhere; }
.brief ul, .brief ol { padding-left: 1.2rem; margin: .3rem 0; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .45rem .6rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; background: var(--soft); position: sticky; top: 0; }
td.num, th.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td { overflow-wrap: anywhere; }
code, pre { font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; }
pre { background: var(--soft); padding: .6rem .8rem; overflow-x: auto; margin: .4rem 0 0; white-space: pre; }
pre.long { max-height: 40rem; overflow-y: auto; } td pre { white-space: pre-wrap; }
.tag { font-weight: 600; white-space: nowrap; }
.error, .drop { color: var(--error); } .warning, .look { color: var(--warning); }
.note { color: var(--note); } .use { color: var(--good); }
td p { margin: 0 0 .35rem; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table.faults { table-layout: fixed; } table.faults td:last-child { overflow: hidden; }
.faults th:first-child { width: 6.5rem; } .faults th:nth-child(2) { width: 47%; }
table.facts th { width: 14rem; position: static; } table.episodes th:first-child { width: 8rem; }
table.episodes td.num { white-space: normal; }
table.episodes th:nth-child(2) { width: 5.5rem; }
tr.over td { background: #fdf0ef; }
.filter { display: flex; flex-wrap: wrap; gap: .5rem 1.2rem; align-items: center; margin: .4rem 0 .8rem; }
.filter input[type=search] { font: inherit; padding: .25rem .5rem; width: 20rem; border: 1px solid #9aa5b1; }
details { margin: .6rem 0; } summary { cursor: pointer; font-weight: 600; }
svg.plot { display: block; width: 100%; height: auto; margin: .2rem 0 .6rem; }
svg text { font: 12px system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif; fill: var(--dim); }
svg text.small { font-size: 10.5px; } svg text.head { fill: var(--ink); font-size: 13px; }
.grid { stroke: #e3e8ed; } .band { fill: #dcefe3; } .bar { fill: var(--bar); } .faint { fill: #aab4be; }
.bar-error, .ep-drop { fill: var(--error); } .bar-warning, .ep-look { fill: #d69a1a; }
.ep-use { fill: var(--bar); } .limit { stroke: var(--error); stroke-dasharray: 5 4; }
svg text.limit-text { fill: var(--error); paint-order: stroke; stroke: #fff; stroke-width: 4px; }
polyline { fill: none; stroke-width: 1.6; } .curve0 { stroke: #b3261e; } .curve1 { stroke: #365f8c; }
.curve2 { stroke: #1d6b3f; } svg text.key0 { fill: #b3261e; } svg text.key1 { fill: #365f8c; }
svg text.key2 { fill: #1d6b3f; }
.strips { display: flex; flex-wrap: wrap; gap: 1.2rem 1.6rem; }
.strip { max-width: 100%; } .strip p { overflow-wrap: anywhere; }
.strip .row { display: flex; flex-wrap: wrap; gap: .35rem; }
figure { margin: 0; } figcaption { font-size: 12px; color: var(--dim); max-width: 240px; }
figure img { display: block; max-width: 240px; min-width: 96px; height: auto; background: #000; }
.strip p { margin: 0 0 .25rem; line-height: 1.35; }
@media (max-width: 52rem) { .brief { grid-template-columns: 1fr; } }
@media print {
  @page { margin: 14mm; }
  html { font-size: 12px; } body { padding: 0; max-width: none; font-size: 11px; }
  th { position: static; } code, pre, figcaption { font-size: 9.5px; } .tile { min-width: 0; }
  .filter { display: none; } h2, h3 { break-after: avoid; }
  tr, figure, svg, .strip, .tile { break-inside: avoid; }
  pre { white-space: pre-wrap; } pre.long { max-height: none; } .scroll { overflow: visible; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

# The controls are made by the script: a reader without scripts sees the whole table and no dead knobs.
SCRIPT = """
(function () {
  var table = document.getElementById("faults");
  if (!table) { return; }
  var rows = Array.prototype.slice.call(table.tBodies[0].rows);
  var bar = document.createElement("div"), search = document.createElement("input");
  var told = document.createElement("span"), boxes = [];
  bar.className = "filter"; told.className = "dim";
  search.type = "search"; search.placeholder = "code, feature, file, episode 7 ...";
  search.setAttribute("aria-label", "filter the faults by text");
  bar.appendChild(search);
  ["error", "warning", "note"].forEach(function (name) {
    var label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox"; box.checked = true; box.value = name; boxes.push(box);
    label.appendChild(box); label.appendChild(document.createTextNode(" " + name + "s"));
    bar.appendChild(label);
  });
  bar.appendChild(told);
  table.parentNode.insertBefore(bar, table);
  function apply() {
    var words = search.value.toLowerCase().split(/ +/), shown = 0;
    rows.forEach(function (row) {
      var text = row.textContent.toLowerCase(), severity = row.getAttribute("data-severity");
      var on = boxes.some(function (box) { return box.checked && box.value === severity; }) &&
        words.every(function (word) { return text.indexOf(word) >= 0; });
      row.hidden = !on; shown += on ? 1 : 0;
    });
    told.textContent = shown + " of " + rows.length + " shown";
  }
  search.addEventListener("input", apply);
  boxes.forEach(function (box) { box.addEventListener("change", apply); });
  apply();
})();
"""
