"""The audit beside public validators: which planted faults each names, and how long each takes.

The validators are no part of the project: each lies in a virtual environment of its own below the folder that
STACK_PEERS names (`doctor/`, `robovet/`, ...; the table below says what to install). Without it the audit is
measured alone, and the table says so.

A validator is credited with a fault when it says anything about the damaged dataset that it does not say
about the good one. The audit is credited only where the right code stands at the right file, episode and
feature.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.audit_good import write_v21, write_v30
from bench.audit_plants import PLANTS, Plant, nothing
from bench.inputs import Size, delivery
from stack.audit.catalogue import load_kinds

BOUND_S = 300.0
LARGER_BOUND_S = 3600.0  # 45,000 pictures decoded, perhaps on a busy machine
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
LARGER = Size((300,) * 50, 320, 240, seed=0)
# Not faults of a dataset's content, or such that only a dataset that `stack prepare` wrote can have.
LEFT_OUT = {"file-hash-differs", "unchecked-rows", "unchecked-video", "format-needs-conversion"}


@dataclass(frozen=True)
class Ran:
    """What a tool said, in lines that can be compared; `broke` where it gave no report."""

    said: frozenset[str]
    seconds: float
    cpu_seconds: float
    broke: bool = False


@dataclass(frozen=True)
class Peer:
    """A validator: what to install, how it is called for (dataset, file to write, every picture) and read."""

    name: str
    package: str
    command: Callable[[Path, Path, bool], Sequence[str]]
    read: Callable[[str, Path], set[str]]
    versions: frozenset[str] = field(default=frozenset({"v2.1", "v3.0"}))


def _doctor(out: str, _: Path) -> set[str]:
    checks = json.loads(out)["checks"]
    return {
        f"{m['severity']} {m['message']}" for c in checks for m in c["messages"] if m["severity"] != "PASS"
    }


def _robovet(_: str, file: Path) -> set[str]:
    results = json.loads(file.read_text())["results"]
    return {f"{r['check_id']} {r['summary']}" for r in results if r["severity"] not in ("PASS", "INFO")}


def _rdq(_: str, file: Path) -> set[str]:
    return {f"{f['check']} {f['message']}" for f in json.loads(file.read_text())["findings"]}


def _kalanos(out: str, _: Path) -> set[str]:
    report = json.loads(out)
    keys = ("metric_id", "severity", "value", "source_field", "channel")
    said = {" ".join(str(finding.get(key)) for key in keys) for finding in report["findings"]}
    said |= {f"error {json.dumps(error)[:200]}" for error in report["operational_errors"]}
    # What it could not take in, it says in these places and not among its findings.
    said |= {f"readiness {reason}" for reason in report["readiness"]["reasons"]}
    inventory, counts = report["inventory"], report["eligibility_counts"]
    said |= {
        f"inventory {key} {inventory[key]}" for key in ("expected", "loaded", "failed", "refused_sources")
    }
    said |= {f"eligibility {key} {counts[key]}" for key in ("pass_count", "blocked", "review", "unknown")}
    return said | {f"duplicates {json.dumps(one)[:200]}" for one in report["duplicates"]}


def _deepen(out: str, _: Path) -> set[str]:
    report = json.loads(out)
    said = {f"{name} {c['defective']}" for name, c in report["defect_classes"].items() if c["defective"]}
    said |= {f"episodes {len(report['episodes'])}", f"grade {report['overall']['grade']}"}
    said |= {f"warning {warning}" for warning in report["warnings"]}
    for episode in report["episodes"]:
        said |= {
            f"episode {episode['episode_id']} {c['check_id']} {c['severity']}"
            for c in episode["checks"]
            if c["severity"] in ("warn", "fail")
        }
    said |= {
        f"{n} {c['counts']}" for n, c in report["training_value"].items() if set(c["counts"]) != {"pass"}
    }
    checks = report["dataset_level_checks"]
    return said | {f"{c['check_id']} {c['summary']}" for c in checks if c["severity"] != "pass"}


def _embodied(out: str, _: Path) -> set[str]:
    results = json.loads(out)["results"]
    return {f"{r['name']} {r['status']} {r['detail']}" for r in results if r["status"] != "PASS"}


PEERS = (
    Peer(
        "doctor",
        "lerobot-doctor==0.2.0",
        lambda r, f, deep: ["lerobot-doctor", "check", str(r), "--json"],
        _doctor,
    ),
    Peer(
        "robovet",
        "robovet[video]==0.2.2",
        lambda r, f, deep: ["robovet", "doctor", str(r), "--json", str(f)],
        _robovet,
    ),
    Peer(
        "rdq",
        "rdq[video]==0.3.4",
        lambda r, f, deep: ["rdq", "check", str(r), "--video-full" if deep else "--video", "--json", str(f)],
        _rdq,
    ),
    Peer(
        "kalanos",
        "kalanos[video]==0.8.2",
        lambda r, f, deep: ["kalanos", "grade", str(r), *["--full-frame-scan"][: int(deep)], "--json"],
        _kalanos,
    ),
    Peer(
        "deepen",
        "deepen-grade[lerobot]==0.4.1",
        lambda r, f, deep: ["deepen", "grade", str(r), "--json", "--quiet"],
        _deepen,
    ),
    Peer(
        "embodied",
        "embodied-data==0.3.1",
        lambda r, f, deep: ["embodied-data", "--json", "validate", str(r)],
        _embodied,
        frozenset({"v3.0"}),
    ),
)


def plants() -> dict[str, Plant]:
    """The first way to plant each fault that is more than a note and lies in the dataset itself."""
    found = {}
    for code, ways in PLANTS.items():
        own = [way for way in ways if way.damage is not nothing and not way.needs and way.severity != "note"]
        if own and code not in LEFT_OUT and (own[0].severity or load_kinds()[code].severity) != "note":
            found[code] = own[0]
    return found


def _cpu_s() -> float:
    """Of all children that have ended, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_peer(
    peer: Peer, folder: Path, root: Path, scratch: Path, *, deep: bool, bound_s: float = BOUND_S
) -> Ran:
    file = scratch / f"{peer.name}.json"
    file.unlink(missing_ok=True)
    program, *arguments = peer.command(root, file, deep)
    started, before = time.monotonic(), _cpu_s()
    said: set[str] | None = None
    try:
        done = subprocess.run(
            [str(folder / peer.name / "bin" / program), *arguments],
            capture_output=True,
            text=True,
            timeout=bound_s,
            env={**os.environ, **OFFLINE},
        )
        said = peer.read(done.stdout, file)
    except (subprocess.TimeoutExpired, ValueError, KeyError, OSError):
        pass  # no report came
    took = time.monotonic() - started, _cpu_s() - before
    return Ran(frozenset(said or ()), *took, broke=said is None)


def run_audit(
    root: Path, scratch: Path, *, deep: bool, bound_s: float = BOUND_S
) -> tuple[dict[str, Any], float, float]:
    """The audit's report as JSON, and the seconds and processor seconds that the command took."""
    file = scratch / "audit.json"
    file.unlink(missing_ok=True)
    started, before = time.monotonic(), _cpu_s()
    subprocess.run(
        [sys.executable, "-m", "stack", "audit", str(root), "--for", "pi05", "--json", str(file)]
        + (["--deep"] if deep else []),
        capture_output=True,
        timeout=bound_s,
        env={**os.environ, **OFFLINE},
        check=False,
    )
    return json.loads(file.read_text()), time.monotonic() - started, _cpu_s() - before


def finds(report: Mapping[str, Any], code: str, plant: Plant) -> bool:
    wanted = plant.where.to_json()
    severity = plant.severity or load_kinds()[code].severity
    return any(
        fault["code"] == code
        and fault["severity"] == severity
        and any(wanted.items() <= place.items() for place in fault["places"])
        for fault in report["faults"]
    )


class Comparison:
    """Runs every tool on every dataset; what was measured is kept, so that a stopped run goes on."""

    def __init__(self, scratch: Path, peers: Path | None) -> None:
        self.scratch, self.folder = scratch, peers
        self.scratch.mkdir(parents=True, exist_ok=True)
        here = [p for p in PEERS if peers is not None and (peers / p.name / "bin").is_dir()]
        self.peers = here
        self.kept = scratch / "measured.json"
        self.cells: dict[str, Any] = json.loads(self.kept.read_text()) if self.kept.exists() else {}

    def good(self, version: str) -> Path:
        root = self.scratch / "good" / version
        if not (root / "meta").is_dir():
            (write_v21 if version == "v2.1" else write_v30)(root)
        return root

    def keep(self, key: str, value: Any) -> Any:
        self.cells[key] = value
        self.kept.write_text(json.dumps(self.cells, indent=1, sort_keys=True))
        return value

    def peer(
        self, peer: Peer, root: Path, key: str, *, deep: bool, bound_s: float = BOUND_S
    ) -> dict[str, Any]:
        assert self.folder is not None
        if key not in self.cells:
            ran = run_peer(peer, self.folder, root, self.scratch, deep=deep, bound_s=bound_s)
            cell = {"said": sorted(ran.said), "s": ran.seconds, "cpu_s": ran.cpu_seconds, "broke": ran.broke}
            return self.keep(key, cell)  # type: ignore[no-any-return]
        return self.cells[key]  # type: ignore[no-any-return]

    def damaged(self, code: str, plant: Plant) -> Path:
        root = self.scratch / "damaged" / f"small-{plant.version}"
        shutil.rmtree(root.parent, ignore_errors=True)
        shutil.copytree(self.good(plant.version), root)
        plant.damage(root)
        return root

    def run(self, log: Callable[[str], None]) -> None:
        for version in ("v2.1", "v3.0"):
            for peer in self.peers:
                if version in peer.versions:
                    for deep in (False, True):
                        key = f"{peer.name} good {version} {deep}"
                        self.peer(peer, self.good(version), key, deep=deep)
        # In no order of theirs, so that what a stopped run has is a fair sample.
        for code, plant in sorted(plants().items(), key=lambda item: zlib.crc32(item[0].encode())):
            keys = [f"{p.name} {code}" for p in self.peers if plant.version in p.versions]
            if all(key in self.cells for key in [f"audit {code}", *keys]):
                continue
            root = self.damaged(code, plant)
            if f"audit {code}" not in self.cells:
                report, seconds, _ = run_audit(root, self.scratch, deep=plant.deep)
                self.keep(f"audit {code}", {"found": finds(report, code, plant), "s": seconds})
            for peer in self.peers:
                if plant.version in peer.versions:
                    self.peer(peer, root, f"{peer.name} {code}", deep=plant.deep)
            log(f"audit-peers: {code}: {', '.join(self.named(code, plant)) or 'by nobody'}")
        shutil.rmtree(self.scratch / "damaged", ignore_errors=True)

    def larger(self, clips: Path) -> None:
        """Seconds on 50 episodes of 300 frames with three cameras."""
        root = delivery(self.scratch / "larger", clips, LARGER)
        for deep in (False, True):
            key = f"audit larger {'deep' if deep else 'fast'}"
            if not isinstance(self.cells.get(key), dict):
                _, wall_s, cpu_s = run_audit(root, self.scratch, deep=deep, bound_s=LARGER_BOUND_S)
                self.keep(key, {"s": wall_s, "cpu_s": cpu_s})
        for peer in self.peers:
            if "v2.1" in peer.versions:
                self.peer(peer, root, f"{peer.name} larger", deep=False, bound_s=LARGER_BOUND_S)

    def credit(self, peer: Peer, code: str, plant: Plant) -> str:
        """`yes`, `no`, `breaks off` (no report), `-` where it does not read this version, or `not tried`."""
        if plant.version not in peer.versions:
            return "-"
        if f"{peer.name} {code}" not in self.cells:
            return "not tried"
        cell, good = (
            self.cells[f"{peer.name} {code}"],
            self.cells[f"{peer.name} good {plant.version} {plant.deep}"],
        )
        if cell["broke"]:
            return "breaks off"
        return "yes" if set(cell["said"]) - set(good["said"]) else "no"

    def measured(self) -> dict[str, Plant]:
        """The faults that the audit was tried on, and every other tool that the run came to."""
        return {code: plant for code, plant in plants().items() if f"audit {code}" in self.cells}

    def named(self, code: str, plant: Plant) -> list[str]:
        own = ["audit"] if self.cells[f"audit {code}"]["found"] else []
        return own + [p.name for p in self.peers if self.credit(p, code, plant) == "yes"]

    def table(self) -> str:
        """Markdown: totals first, then every fault."""
        all_plants = self.measured()
        heads = ["tool", "faults named", "no report", "s a fault (mean)", "s, 50 episodes (CPU-s)"]
        rows = [["`stack audit`", *self._own(all_plants)]]
        for peer in self.peers:
            rows.append([f"{peer.package}", *self._total(peer, all_plants)])
        lines = [_line(heads), _line(["---"] * len(heads)), *map(_line, rows), ""]
        if len(all_plants) < len(plants()):
            lines += [f"{len(all_plants)} of {len(plants())} faults were tried; the run was stopped.", ""]
        unseen = [c for c, p in all_plants.items() if not set(self.named(c, p)) - {"audit"}]
        if self.peers:
            some = len(all_plants) - len(unseen)
            lines += [f"All {len(self.peers)} validators together name {some} of {len(all_plants)}.", ""]
            lines += [_line(["fault", "layout", "audit", *(p.name for p in self.peers)])]
            lines += [_line(["---"] * (3 + len(self.peers)))]
            for code, plant in all_plants.items():
                own = "yes" if self.cells[f"audit {code}"]["found"] else "**no**"
                marks = [self.credit(p, code, plant) for p in self.peers]
                lines.append(_line([f"`{code}`", plant.version, own, *marks]))
        else:
            lines += ["No other validator was there (STACK_PEERS), so the audit was measured alone."]
        return "\n".join(lines) + "\n"

    def _own(self, all_plants: Mapping[str, Plant]) -> list[str]:
        cells = [self.cells[f"audit {code}"] for code in all_plants]
        mean = sum(cell["s"] for cell in cells) / len(cells)
        fast, deep = (self.cells.get(f"audit larger {how}") for how in ("fast", "deep"))
        larger = f"{_took(fast)}; every picture decoded: {_took(deep)}" if fast and deep else ""
        found = sum(cell["found"] for cell in cells)
        return [f"{found} of {len(cells)}", "0", f"{mean:.1f}", larger]

    def _total(self, peer: Peer, all_plants: Mapping[str, Plant]) -> list[str]:
        given = {code: self.credit(peer, code, plant) for code, plant in all_plants.items()}
        able = [code for code, mark in given.items() if mark not in ("-", "not tried")]
        mean = sum(self.cells[f"{peer.name} {code}"]["s"] for code in able) / max(1, len(able))
        larger = self.cells.get(f"{peer.name} larger")
        named = sum(given[code] == "yes" for code in able)
        broke = sum(given[code] == "breaks off" for code in able)
        return [f"{named} of {len(able)}", str(broke), f"{mean:.1f}", _took(larger) if larger else ""]


def _took(cell: Mapping[str, Any]) -> str:
    broke = ", no report" if cell.get("broke") else ""
    return f"{cell['s']:.1f} ({cell['cpu_s']:.1f}{broke})"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


INTRODUCTION = """# The audit beside public validators

`STACK_PEERS=FOLDER python -m bench --only audit-peers` plants each fault of the catalogue (the first way of
each that is an error or a warning and lies in the dataset itself) in a small good dataset, runs every tool
on the same folder, and writes this page. A validator is credited when it says anything that it does not say
about the good dataset, the right place or not; the audit only when the right code stands at the right file,
episode and feature. The catalogue is the audit's own, so its column shows only that nothing is lost; the
others' show what they would have let pass. Seconds are of whole commands. Every picture is decoded (where a
tool can) only for the faults that nothing else shows: black, frozen and damaged pictures, and the like.

`breaks off`: no report came; a message, if there was one, is not counted. A validator is also credited where
what it says comes of the way of planting, such as a camera moved into the rows.

Seen elsewhere and not run here: lerobot-lint (needs lerobot and torch; 9 of 47 such faults), forge-robotics
(3 of 54), lerobot-quality-gates (the same three findings for every dataset), robot-data-diff (compares
statistics, not rows), lero-core (lists only), lerobot-surgery (an editor).

"""


def peers_folder() -> Path | None:
    given = os.environ.get("STACK_PEERS")
    return Path(given).absolute() if given else None
