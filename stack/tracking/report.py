"""`stack report`: one self-contained page of a run, or of what differs between two; from folders alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from stack.drawing import Bar as DrawnBar
from stack.drawing import Line, bar_chart, line_chart
from stack.files import read_json
from stack.tracking import names
from stack.tracking.record_read import RunRecord
from stack.tracking.report_html import duration, figure, flat, page, size, table, when

FIRST_TAGS = (
    names.VERDICT, names.OUTCOME, names.MESSAGE, names.DATASET, names.DATASET_DIGEST, names.WEIGHTS,
    names.WEIGHTS_DIGEST, names.DEVICE, names.DRIVER, names.IMAGE, names.LINE, names.GIT, names.VERSION,
)  # fmt: skip
GROUPS = ("train/", "eval/", "perf/", "mem/", "data/", "npu/", "cuda/", "host/")
BOOKKEEPING = ("stack.run_id", "stack.parent_run_id", "stack.kind", "stack.attempt", "mlflow.", "stack.run")


def report_page(run: RunRecord) -> str:
    """The page of one run: how it ended, what it was, its curves, its speed, its parameters."""
    said = run.said
    parts = [_heading(run)]
    tags = {key: value for one in reversed(run.all_below()) for key, value in one.said.tags.items()}
    shown = [tag for tag in FIRST_TAGS if tags.get(tag)] + _further_tags(said.tags)
    parts.append(table([(tag, tags[tag]) for tag in shown], ("", "")))
    parts += _verdict(run.folder)
    if len(run.all_below()) > 1 or len(run.attempts) > 1:
        parts += ["<h2>Runs and attempts</h2>", _runs(run)]
    for one in run.all_below():
        parts += _events(one)
    parts.append("<h2>Curves</h2>")
    parts += _single_curves(run)
    parts += ["<h2>Performance</h2>", *_performance([("", run)])]
    parts += _sweeps([("", run)])
    params = {key: value for one in reversed(run.all_below()) for key, value in one.said.params.items()}
    parts += ["<h2>Parameters</h2>", table(sorted(params.items()), ("parameter", "value"))]
    parts += _references(run)
    return page(f"{said.name}: {said.tags[names.OUTCOME]}", parts)


def comparison_page(a: RunRecord, b: RunRecord) -> str:
    """What differs between two runs: configuration first, then curves, then performance."""
    pair = [("A", a), ("B", b)]
    parts = ["<h1>What differs</h1>"]
    parts += [
        f"<p><span class='{mark.lower()}'>{mark}</span> {escape(run.said.name)}, {_outcome(run)}, "
        f"{when(run.said.start_ms)} <span class='dim'>{escape(_place(run))}</span></p>"
        for mark, run in pair
    ]
    parts.append("<h2>Configuration</h2>")
    parts += _differences(a, b)
    parts.append("<h2>Curves</h2>")
    parts += _compared_curves(pair)
    parts += ["<h2>Performance</h2>", *_performance(pair)]
    parts += _sweeps(pair)
    return page(f"{a.said.name} and {b.said.name}", parts)


def configuration(run: RunRecord) -> dict[str, str]:
    """All that decides a run, flat: resolved manifests, parameters, facts of code, data and machine."""
    found: dict[str, str] = {}
    for one in reversed(run.all_below()):
        if one.kind == names.kind_of(names.SWEEP) and one.said.parent is not None and not one.children:
            continue  # a point's settings are its own
        found |= {key: value for key, value in one.said.tags.items() if not key.startswith(BOOKKEEPING)}
        found |= one.said.params
        found |= dict(flat(one.manifest()))
    drop = (names.OUTCOME, names.VERDICT, names.MESSAGE, names.SHIPPED, names.THINNED, names.NONFINITE)
    return {key: value for key, value in found.items() if key not in drop}


def _differences(a: RunRecord, b: RunRecord) -> list[str]:
    ours, theirs = configuration(a), configuration(b)
    keys = sorted(ours.keys() | theirs.keys(), key=lambda key: (key.startswith(("stack.", "expect")), key))
    rows, seen = [], set()
    for key in keys:
        values = ours.get(key, "not given"), theirs.get(key, "not given")
        # The same setting stands in a manifest and among the parameters; it is told once.
        told = (key.removeprefix("run.").removeprefix("policy.").removeprefix("train."), values)
        if values[0] != values[1] and told not in seen:
            seen.add(told)
            rows.append((key, *values))
    equal = sum(ours.get(key) == theirs.get(key) for key in keys)
    told_equal = f"<p class='dim'>{equal} further settings and facts are equal.</p>"
    if not rows:
        return [f"<p class='good'>Nothing: all {equal} settings and facts are equal.</p>"]
    return [table(rows, ("", "A", "B")), told_equal]


def _single_curves(run: RunRecord) -> list[str]:
    parts = []
    for one in run.all_below():
        for key in _curve_keys([one]):
            lines = [
                Line(f"attempt {attempt.number}" if len(one.attempts) > 1 else key, attempt.curves[key])
                for attempt in one.attempts
                if len(attempt.curves.get(key, ())) > 1
            ]
            parts.append(_chart(lines, key, key if one is run else f"{one.said.name}: {key}"))
    return _grid(parts) or ["<p class='dim'>None.</p>"]


def _compared_curves(pair: Sequence[tuple[str, RunRecord]]) -> list[str]:
    parts = []
    of_kind = [(mark, one) for mark, run in pair for one in run.all_below() if _curve_keys([one])]
    for key in _curve_keys([one for _, one in of_kind]):
        lines = [
            Line(f"{mark}: {one.said.name}", one.curves[key])
            for mark, one in of_kind
            if len(one.curves.get(key, ())) > 1
        ]
        parts.append(_chart(lines, key, key))
    return _grid(parts) or ["<p class='dim'>Neither has any.</p>"]


def _curve_keys(runs: Sequence[RunRecord]) -> list[str]:
    keys = {
        key for run in runs for attempt in run.attempts for key, points in attempt.curves.items()
        if len(points) > 1 and not key.startswith("final_")
    }  # fmt: skip

    def order(key: str) -> tuple[int, bool, list[Any]]:
        group = next((n for n, prefix in enumerate(GROUPS) if key.startswith(prefix)), len(GROUPS))
        numbered = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)]
        return group, key != names.LOSS, numbered

    return sorted(keys, key=order)


def _grid(charts: Sequence[str]) -> list[str]:
    return ["<div class='curves'>", *charts, "</div>"] if charts else []


def _chart(lines: Sequence[Line], key: str, title: str) -> str:
    is_clock = any(part in key for part in ("npu/", "cuda/", "host/"))
    scaled = lines
    if key.endswith("_bytes"):
        scaled = [Line(line.name, [(x, y / 1e9) for x, y in line.points]) for line in lines]
        title = f"{title.removesuffix('_bytes')}, GB"
    x = "seconds since the attempt began" if is_clock else "step"
    if key == names.LOSS:
        return line_chart(scaled, title=title, x=x, log=True)
    return line_chart(scaled, title=title, x=x, width=460, height=200)


def _performance(pair: Sequence[tuple[str, RunRecord]]) -> list[str]:
    """Values of whole runs, those of equal name in one row; with two runs their ratio."""
    values: dict[str, dict[str, float]] = {}
    for mark, run in pair:
        for one in run.all_below():
            if one.kind == names.kind_of(names.SWEEP):
                continue
            own = {**one.finals(), "duration_s": one.duration_s}
            for key, value in own.items():
                values.setdefault(f"{one.kind}: {key}", {})[mark] = value
    marks = [mark for mark, _ in pair]
    rows = []
    for key, own in values.items():
        row = [key, *(figure(key, own[m]) if m in own else "-" for m in marks)]
        if len(marks) == 2:
            both = [own.get(mark) for mark in marks]
            row.append(f"{both[1] / both[0]:.3g}" if both[0] and both[1] is not None else "-")
        rows.append(tuple(row))
    head = ("", "") if len(marks) == 1 else ("", *marks, "B / A")
    return [table(rows, head, numeric=True)] if rows else ["<p class='dim'>No figures.</p>"]


def _sweeps(pair: Sequence[tuple[str, RunRecord]]) -> list[str]:
    bars = []
    for mark, run in pair:
        for sweep in run.all_below():
            if sweep.kind != names.kind_of(names.SWEEP):
                continue
            for point in sweep.children:
                outcome = point.said.tags[names.OUTCOME]
                speed = point.finals().get("samples_per_s")
                bars.append((point.said.name, mark, speed, "" if outcome == "ok" else outcome))
    if not bars:
        return []
    drawn = [
        DrawnBar(f"{mark}: {name}" if mark else name, value, word)
        for name, mark, value, word in sorted(bars, key=_by_point)
    ]
    return ["<h2>Sweeps</h2>", bar_chart(drawn, title="samples a second of each point", unit="samples/s")]


def _by_point(bar: tuple[str, str, float | None, str]) -> tuple[list[int], str]:
    return [int(digits) for digits in re.findall(r"\d+", bar[0])], bar[1]


def _heading(run: RunRecord) -> str:
    said = run.said
    purpose = said.tags.get(names.DESCRIPTION, "")
    spent = f"{when(said.start_ms)}, {duration(run.duration_s)}"
    tries = f", {len(run.attempts)} attempts" if len(run.attempts) > 1 else ""
    return (
        f"<h1>{escape(said.name)}: {_outcome(run)}</h1><p>{escape(purpose)}</p>"
        f"<p class='dim'>{spent}{tries}; {escape(_place(run))}</p>"
    )


def _verdict(folder: Path) -> list[str]:
    file = folder / "verdict.json"
    if not file.is_file():
        return []
    rows = read_json(file, what="verdict").get("rows", [])
    marks = {True: "pass", False: "FAIL", None: "not judged"}
    cells = [(r["gate"], r["name"], r["expected"], r["got"], marks[r["ok"]]) for r in rows]
    return ["<h2>Verdict</h2>", table(cells, ("gate", "what", "expected", "got", ""))]


def _runs(run: RunRecord) -> str:
    rows = []
    for one in run.all_below():
        for attempt in one.attempts:
            number_of = f" (attempt {attempt.number})" if len(one.attempts) > 1 else ""
            is_last = attempt is one.attempts[-1]
            outcome = one.said.tags[names.OUTCOME] if is_last else attempt.status.lower()
            spent = duration((attempt.end_ms - attempt.start_ms) / 1000)
            rows.append((f"{one.said.name}{number_of}", one.kind, outcome, when(attempt.start_ms), spent))
    return table(rows, ("run", "kind", "outcome", "began", "took"))


def _events(run: RunRecord) -> list[str]:
    told = [e for e in run.said.events if e["event"] not in ("attempt", "checkpoint")]
    if not told:
        return []
    rows = [
        (e["time"][:19].replace("T", " "), e["event"], "; ".join(f"{k} {v}" for k, v in e.items()
         if k not in ("t", "time", "event")))
        for e in told
    ]  # fmt: skip
    return [f"<h2>Events of {escape(run.said.name)}</h2>", table(rows, ("", "", ""))]


def _references(run: RunRecord) -> list[str]:
    rows = []
    for one in run.all_below():
        for model in one.said.models:
            name = f"{one.said.name}, {' and '.join(model.roles)}"
            rows.append((name, str(model.step), model.path, size(model.size_bytes), model.sha256))
    return ["<h2>Checkpoints</h2>", table(rows, ("", "step", "path", "size", "sha256"))] if rows else []


def _further_tags(tags: Mapping[str, str]) -> list[str]:
    passed = (*BOOKKEEPING, names.SHIPPED)
    return sorted(tag for tag in tags if tag not in FIRST_TAGS and not tag.startswith(passed))


def _outcome(run: RunRecord) -> str:
    tags = run.said.tags
    word = tags.get(names.VERDICT) or tags[names.OUTCOME]
    is_good = tags[names.OUTCOME] == "ok"
    return f"<span class='{'good' if is_good else 'bad'}'>{escape(word)}</span>"


def _place(run: RunRecord) -> str:
    return run.folder.name
