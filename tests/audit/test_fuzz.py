"""Random damage: never a traceback, never a hang, never a clean verdict where the content differs.

The dataset is a prepared one: `meta/provenance.json` records each file's hash, as `stack prepare`
writes it. What differs is told by a reader of this test's own (pyarrow, PyAV), which knows nothing of the
audit. Two more batches damage datasets without recorded hashes, where a changed bit of a float may be a
value like any other: there every difference that can be counted must be told.

STACK_FUZZ_CASES sets the number of cases (default 200 over all batches; the acceptance run takes 2,000), and
STACK_FUZZ_SEED gives others.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import av
import psutil
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the worker runs this file as a script

import stack
from bench.audit_good import pictures_into_rows
from stack.audit import PolicyNeeds, audit

CASES = int(os.environ.get("STACK_FUZZ_CASES", "200"))
SEED = os.environ.get("STACK_FUZZ_SEED", "")
BATCHES = {"recorded": 0.4, "v3.0": 0.15, "v2.1": 0.15, "v3.0 rows": 0.15, "v2.1 rows": 0.15}
# A hang: a minute, not counting the time that the kernel let the work wait for a processor.
BOUND_S = 60.0
HAND = "observation.images.hand"
JUNK: tuple[Any, ...] = (
    None, -1, 0, 1, 2**40, 2**63, 1e300, float("nan"), float("inf"), "", "x", "..", "../../etc", "{", "{0}",
    "{a.b}", "{episode_index:0999999999d}", "\u0000", [], {}, [[]], [1, "a", None], {"a": {"b": []}}, True,
    False, "v9.9", [[[[]]]], {"dtype": 3}, "9" * 400, -0.0, ["\ud800"],
)  # fmt: skip


def flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 8, 64])):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(content: bytes, rng: random.Random) -> bytes:
    how = rng.randrange(4)
    if how == 0:
        return content[: rng.randrange(len(content) + 1)]
    if how == 1:
        return content[rng.randrange(len(content) + 1) :]
    if how == 2:
        return content + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 200)))
    start = rng.randrange(len(content) + 1)
    return content[:start] + content[start + rng.randrange(1, 500) :]


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*at, key))


def mutate(value: Any, rng: random.Random) -> Any:
    """Replace, remove, double or rename one value anywhere in the tree."""
    places = list(paths(value))
    if not places:
        return rng.choice(JUNK)
    *way, last = rng.choice(places)
    inside = value
    for key in way:
        inside = inside[key]
    how = rng.randrange(4)
    if how == 0:
        del inside[last]
    elif how == 1 and isinstance(inside, list):
        inside.append(inside[last])
    elif how == 1:
        inside[f"{last}_"] = inside.pop(last)
    elif how == 2 and isinstance(inside[last], (int, float)) and not isinstance(inside[last], bool):
        inside[last] = rng.choice([inside[last] + 1, -inside[last], inside[last] * 1000, str(inside[last])])
    else:
        inside[last] = rng.choice(JUNK)
    return value


def mutate_json(content: bytes, rng: random.Random, name: str) -> bytes:
    if name.endswith(".jsonl"):
        lines = content.decode().splitlines()
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(mutate(json.loads(lines[at]), rng))
        if rng.random() < 0.2:
            rng.shuffle(lines)
        return ("\n".join(lines) + "\n").encode()
    return json.dumps(mutate(json.loads(content), rng)).encode()


def damage(root: Path, rng: random.Random) -> str:
    """Damage one file of the dataset, and say how."""
    files = sorted(p for p in root.rglob("*") if p.is_file())
    meta = [p for p in files if p.suffix in (".json", ".jsonl")]
    how = rng.choice(["flip", "cut", "json"])
    file = rng.choice(meta if how == "json" else files)
    content = file.read_bytes()
    if how == "json":
        changed = mutate_json(content, rng, file.name)
    else:
        changed = (flip if how == "flip" else cut)(content, rng)
    file.write_bytes(changed)
    return f"{how} {file.relative_to(root)}"


def content_of(root: Path) -> dict[str, Any]:
    """Rows, coded pictures and counts as another reader finds them; what it cannot read is told as such."""
    found: dict[str, Any] = {}
    for file in sorted(root.rglob("*.parquet")):
        name = file.relative_to(root).as_posix()
        try:
            table = pq.read_table(file)
            table.validate(full=True)
            found[name] = (table.num_rows, hashlib.sha256(repr(table.to_pydict()).encode()).hexdigest())
            if HAND in table.column_names:
                found[f"{name} pictures"] = sum(decodes(cell) for cell in table.column(HAND).to_pylist())
        except Exception as error:
            found[name] = f"unreadable {type(error).__name__}"
    for file in sorted(root.rglob("*.mp4")):
        digest, frames = hashlib.sha256(), 0
        try:
            with av.open(str(file)) as container:
                for frame in container.decode(video=0):
                    digest.update(frame.to_ndarray(format="rgb24").tobytes())
                    frames += 1
            found[file.relative_to(root).as_posix()] = (frames, digest.hexdigest())
        except Exception as error:
            found[file.relative_to(root).as_posix()] = f"unreadable {type(error).__name__}"
    for name in ("total_episodes", "total_frames", "fps"):
        try:
            found[name] = json.loads((root / "meta/info.json").read_text())[name]
        except Exception as error:
            found[name] = f"unreadable {type(error).__name__}"
    episodes = root / "meta/episodes.jsonl"
    if episodes.exists():
        try:
            entries = [json.loads(line) for line in episodes.read_text().splitlines()]
            found["lengths"] = sorted((e["episode_index"], e["length"]) for e in entries)
        except Exception as error:
            found["lengths"] = f"unreadable {type(error).__name__}"
    return found


def decodes(cell: Any) -> bool:
    """Whether a picture in the rows is there and can be shown."""
    try:
        with av.open(io.BytesIO(cell["bytes"])) as container:
            return next(container.decode(video=0)).width > 0
    except Exception:
        return False


def counts_of(content: dict[str, Any]) -> dict[str, Any]:
    """Only what is counted: rows, frames, episodes, or that a file cannot be read."""
    return {k: v[0] if isinstance(v, list) and k != "lengths" else v for k, v in content.items()}


def verdict_of(root: Path) -> tuple[bool, list[str]]:
    """Whether the audit calls it good, and the checks that broke off.

    Where no hash is recorded, only decoding tells damage inside a coded picture.
    """
    recorded = (root / "meta/provenance.json").exists()
    report = audit(root, policy=PolicyNeeds(), deep=not recorded)
    json.dumps(report.to_json(), allow_nan=False)
    return report.ok, [fault.message for fault in report.of("unchecked-check")]


class Worker:
    """Another process, so that a crash in a library is one failed case and not the end of the tests."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        paths = {"PYTHONPATH": str(Path(stack.__file__).parents[1])}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **paths},
        )

    def __call__(self, work: str, root: Path) -> Any:
        """The result, or why there is none, as text."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps([work, str(root)]) + "\n")
        self._process.stdin.flush()
        if not self._answers():
            self.close()
            self._start()
            return f"no end after {BOUND_S} s"
        answer = self._process.stdout.readline()
        if answer:
            return json.loads(answer)
        code = self._process.wait()
        self._start()
        return f"the process crashed (exit code {code})"

    def _answers(self) -> bool:
        """Whether an answer comes before the bound."""
        began, starved_s = time.monotonic(), self._starved_s()
        while time.monotonic() - began < BOUND_S + self._starved_s() - starved_s:
            if select.select([self._process.stdout], [], [], 1.0)[0]:
                return True
        return False

    def _starved_s(self) -> float:
        """Longest that a thread of the worker has been runnable without a processor (proc's schedstat)."""
        own = psutil.Process(self._process.pid)
        longest = 0
        for process in [own, *own.children(recursive=True)]:
            for account in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
                with suppress(OSError):
                    longest = max(longest, int(account.read_text().split()[1]))
        return longest / 1e9

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def serve() -> None:
    for line in sys.stdin:
        work, root = json.loads(line)
        try:
            result: Any = {"verdict": verdict_of, "content": content_of}[work](Path(root))
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps(result), flush=True)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def recorded(good: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The good v3.0 dataset with the hashes of its files, as `stack prepare` records them."""
    root = Path(shutil.copytree(good["v3.0"], tmp_path_factory.mktemp("fuzz") / "recorded"))
    files = {
        p.relative_to(root).as_posix(): {
            "sha256": hashlib.sha256(p.read_bytes()).hexdigest(),
            "size": p.stat().st_size,
        }
        for p in sorted(root.rglob("*"))
        if p.is_file()
    }
    (root / "meta/provenance.json").write_text(json.dumps({"schema": "stack/provenance/1", "files": files}))
    return root


@pytest.fixture(scope="module")
def with_rows(good: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The good datasets with one camera's pictures in the rows."""
    made = {}
    for version, root in good.items():
        made[f"{version} rows"] = Path(shutil.copytree(root, tmp_path_factory.mktemp("rows") / "set"))
        pictures_into_rows(made[f"{version} rows"], HAND)
    return made


@pytest.mark.parametrize("batch", BATCHES)
def test_damage_is_never_passed_over(
    batch: str,
    recorded: Path,
    good: dict[str, Path],
    with_rows: dict[str, Path],
    tmp_path: Path,
    worker: Worker,
) -> None:
    source = {"recorded": recorded, **good, **with_rows}[batch]
    number = round(CASES * BATCHES[batch])
    right = worker("content", source)
    wrong: list[str] = []
    for case in range(number):
        rng = random.Random(f"{batch} {case}{SEED}")
        root = Path(shutil.copytree(source, tmp_path / "case"))
        said = f"{batch} case {case}: {damage(root, rng)}"
        verdict = worker("verdict", root)
        if isinstance(verdict, str):
            wrong.append(f"{said}: {verdict}")
        else:
            ok, broke = verdict
            wrong += [f"{said}: a check broke off: {message}" for message in broke]
            got = worker("content", root) if ok else right
            if isinstance(got, str):
                wrong.append(f"{said}: called good, but reading it ends with: {got}")
            elif (got if batch == "recorded" else counts_of(got)) != (
                right if batch == "recorded" else counts_of(right)
            ):
                differ = [k for k in right if got.get(k) != right[k]]
                wrong.append(f"{said}: called good, though {differ[:3]} differ")
        shutil.rmtree(root)
    assert not wrong, f"{len(wrong)} of {number}:\n" + "\n".join(wrong)


if __name__ == "__main__":
    serve()
