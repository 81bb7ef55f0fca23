"""The verdict: what a run's manifest expects against what the run gave, gate by gate.

A gate without an expectation, or whose stage did not run, is not judged, and that is never a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from stack.manifests.base import Band
from stack.manifests.run import Expect, ExpectedPoint

GATES = ("tree", "inputs", "machine", "data", "load", "first-steps", "curve", "result", "speed")

Class = Literal["identical", "within-band", "different", "cannot-judge"]


@dataclass(frozen=True)
class Row:
    """One comparison. `ok` is None where it could not be made; `exact` marks the reference's equalities."""

    gate: str
    name: str
    expected: str
    got: str
    ok: bool | None
    exact: bool = False


@dataclass(frozen=True)
class Evidence:
    """What the stages left, as their `facts`; None where a stage did not run or failed."""

    provenance: Mapping[str, Any]
    mirror: Mapping[str, Any] | None = None
    prepare: Mapping[str, Any] | None = None
    audit: Mapping[str, Any] | None = None
    sweep: Mapping[str, Any] | None = None
    train: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Verdict:
    """Attributes:
    kind: one of the four classes.
    gate: the first gate that differs, or the first that could not be judged.
    stopped: why the chain ended early, if it did.
    """

    run: str
    kind: Class
    gate: str | None
    rows: tuple[Row, ...]
    stopped: str | None = None

    @property
    def good(self) -> bool:
        return self.kind in ("identical", "within-band")

    @property
    def tag(self) -> str:
        return f"different-at-{self.gate}" if self.kind == "different" else self.kind

    @property
    def headline(self) -> str:
        if self.kind == "different":
            return f"different at gate {GATES.index(self.gate or '') + 1} ({self.gate})"
        if self.kind == "cannot-judge":
            return f"cannot judge: gate {GATES.index(self.gate or '') + 1} ({self.gate}) was not judged"
        return {"identical": "identical to the reference", "within-band": "within band"}[self.kind]

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "verdict": self.kind,
            "gate": self.gate,
            "good": self.good,
            "headline": self.headline,
            "stopped": self.stopped,
            "rows": [asdict(row) for row in self.rows],
        }


def judge(run: str, expect: Expect, evidence: Evidence, *, stopped: str | None = None) -> Verdict:
    """Compare every gate and name the class.

    Args:
        run: the run's name.
        stopped: why the chain ended early; the gates after that are not judged.
    """
    rows = tuple(_rows(expect, evidence))
    failed = [gate for gate in GATES if any(r.gate == gate and r.ok is False and not r.exact for r in rows)]
    if failed:
        return Verdict(run, "different", failed[0], rows, stopped)
    for gate in GATES:
        judged = [row.ok for row in rows if row.gate == gate and not row.exact]
        if not judged or None in judged:
            return Verdict(run, "cannot-judge", gate, rows, stopped)
    exact = [row.ok for row in rows if row.exact]
    same = bool(exact) and all(exact) and evidence.provenance.get("dirty") is False
    return Verdict(run, "identical" if same else "within-band", None, rows, stopped)


def _rows(expect: Expect, evidence: Evidence) -> Iterator[Row]:
    yield from _tree(evidence.provenance)
    yield from _inputs(evidence)
    yield from _machine(expect, evidence)
    yield from _data(expect, evidence)
    yield from _load(expect, evidence.train)
    yield from _points("first-steps", expect.first_steps, evidence.train)
    yield from _points("curve", expect.curve, evidence.train)
    yield from _result(expect, evidence.train)
    yield from _speed(expect, evidence)
    yield from _reference(expect, evidence)


def _tree(provenance: Mapping[str, Any]) -> Iterator[Row]:
    lock, installed = provenance.get("lock"), provenance.get("installed_lock")
    yield Row(
        "tree",
        "installed packages come from the lock",
        str(lock or "no lock"),
        str(installed or "unknown"),
        None if lock is None or installed is None else lock == installed,
    )


def _inputs(evidence: Evidence) -> Iterator[Row]:
    files = _get(evidence.mirror, "files")
    yield _equal("inputs", "model files with the right sha256", files, _get(evidence.mirror, "verified"))
    sources = _get(evidence.prepare, "sources")
    yield Row(
        "inputs",
        "deliveries read and hashed",
        "every source",
        "not read" if sources is None else ", ".join(f"{s['name']} {s['digest'][:12]}" for s in sources),
        None if sources is None else True,
    )


def _machine(expect: Expect, evidence: Evidence) -> Iterator[Row]:
    if expect.machine is None:
        return
    device = _get(evidence.train, "device")
    yield _equal("machine", "device", expect.machine.device, _get(device, "kind"))
    if expect.machine.count is not None:
        yield _equal("machine", "devices", expect.machine.count, _get(evidence.train, "world"))
    if expect.machine.model is not None:
        name = _get(device, "name")
        ok = None if name is None else expect.machine.model in str(name)
        yield Row("machine", "device model", expect.machine.model, _show(name), ok)
    if expect.machine.line is not None:
        yield _equal("machine", "version line", expect.machine.line, evidence.provenance.get("line"))


def _data(expect: Expect, evidence: Evidence) -> Iterator[Row]:
    yield _equal("data", "audit errors", expect.audit_errors, _get(evidence.audit, "errors"))
    if expect.data is None:
        return
    for name in ("episodes", "frames", "fps", "cameras"):
        wanted = getattr(expect.data, name)
        if wanted is not None:
            yield _equal("data", name, wanted, _get(evidence.prepare, name))
    for feature, width in expect.data.widths.items():
        got = _get(_get(evidence.prepare, "widths"), feature)
        yield _equal("data", f"width of {feature}", width, got)


def _load(expect: Expect, train: Mapping[str, Any] | None) -> Iterator[Row]:
    if expect.load is None:
        return
    filled = _get(_get(train, "weights"), "filled_frac")
    yield _equal("load", "share of parameters filled from the weights", expect.load.filled_frac, filled)
    if expect.load.golden:
        yield _equal("load", "tokenizer gives the golden encoding", True, _get(_get(train, "golden"), "ok"))
    yield _equal("load", "normalisation statistics are the dataset's", True, _get(train, "stats_proven"))
    outside = _get(train, "outside_connections")
    got = len(outside) if isinstance(outside, (list, tuple)) else outside
    yield _equal("load", "connections outside this machine", 0, got)


def _points(gate: str, points: tuple[ExpectedPoint, ...], train: Mapping[str, Any] | None) -> Iterator[Row]:
    windows = {int(step): loss for step, loss in (_get(train, "windows") or ())}
    for point in points:
        yield _within(gate, f"mean loss at step {point.step}", point.loss, windows.get(point.step))


def _result(expect: Expect, train: Mapping[str, Any] | None) -> Iterator[Row]:
    if expect.result is None:
        return
    yield _equal("result", "training", "finished", _get(train, "outcome"))
    yield _equal("result", "steps with a non-finite value", expect.result.nonfinite, _get(train, "nonfinite"))
    if expect.result.last_to_first_fifth is not None:
        got = _get(train, "last_to_first_fifth")
        yield _within("result", "mean loss, last over first fifth", expect.result.last_to_first_fifth, got)
    if expect.result.final_loss is not None:
        yield _within(
            "result", "mean loss of the last fifth", expect.result.final_loss, _get(train, "final_loss")
        )


def _speed(expect: Expect, evidence: Evidence) -> Iterator[Row]:
    speed, train = expect.speed, evidence.train
    if speed is not None and speed.step_s is not None:
        yield _within("speed", "seconds a step", speed.step_s, _get(train, "step_s"))
    if speed is not None and speed.samples_per_s is not None:
        yield _within("speed", "samples a second", speed.samples_per_s, _get(train, "samples_per_s"))
    if speed is not None and speed.peak_memory_gb is not None:
        peak = _get(train, "peak_memory_bytes")
        yield _within("speed", "peak memory, GB", speed.peak_memory_gb, None if peak is None else peak / 1e9)
    for group in expect.sweep:
        points = {
            p["batch"]: p["status"]
            for p in (_get(evidence.sweep, "points") or ())
            if p["devices"] == group.devices
        }
        for batch, wanted in [*((b, "ok") for b in group.ok), *((b, "oom") for b in group.oom)]:
            name = f"sweep, {group.devices} device(s), batch {batch}"
            yield _equal("speed", name, wanted, points.get(batch))


def _reference(expect: Expect, evidence: Evidence) -> Iterator[Row]:
    if expect.reference is None:
        return
    wanted = expect.reference
    checkpoints = _get(evidence.train, "checkpoints") or ()
    pairs: list[tuple[str, str, Any, Any]] = [
        ("data", "content digest", wanted.content_digest, _get(evidence.prepare, "content_digest")),
        ("first-steps", "first losses", list(wanted.first_losses), _get(evidence.train, "first_losses")),
        (
            "result",
            "sha256 of the weights",
            wanted.weights_sha256,
            checkpoints[-1]["sha256"] if checkpoints else None,
        ),
    ]
    for gate, name, expected, got in pairs:
        if isinstance(expected, list) and got is not None:
            got = list(got)[: len(expected)]
        yield Row(gate, f"{name} (reference)", str(expected), _show(got), expected == got, exact=True)


def _get(facts: Any, key: str) -> Any:
    return facts.get(key) if isinstance(facts, Mapping) else None


def _show(value: Any) -> str:
    if value is None:
        return "nothing"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _equal(gate: str, name: str, expected: Any, got: Any) -> Row:
    return Row(gate, name, _show(expected), _show(got), None if got is None else bool(expected == got))


def _within(gate: str, name: str, band: Band, got: float | None) -> Row:
    return Row(gate, name, str(band), _show(got), None if got is None else float(got) in band)
