"""Nothing is lost: kills, full disks, changing and damaged sources."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack.dataset.write_plan import Caps
from stack.dataset.write_resume import RECORDS
from stack.errors import Exit, StackError
from stack.files import tree_digest
from stack.manifests import load_dataset_manifest
from stack.prepare import prepare

CAPS = Caps(data_mb=0.0015, video_mb=0.004, files_per_chunk=2)


@pytest.fixture(scope="module")
def sources(two: Path) -> str:
    """Their bytes, names and times."""
    return state_of_tree(two)


def state_of_tree(root: Path) -> str:
    times = [f"{p.relative_to(root)} {p.stat().st_mtime_ns}" for p in sorted(root.rglob("*")) if p.is_file()]
    return tree_digest(root) + "\n".join(times)


TWENTY_KILLS = """
import json, os, random, shutil, signal, sys, time
from pathlib import Path
from stack.dataset.write_plan import Caps
from stack.files import tree_digest
from stack.manifests import load_dataset_manifest
from stack.prepare import prepare

manifest, out = Path(sys.argv[1]), Path(sys.argv[2])
caps = Caps(data_mb=0.0015, video_mb=0.004, files_per_chunk=2)

def start(target):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            prepare(load_dataset_manifest(manifest), out=target, jobs=1, caps=caps)
            code = 0
        finally:
            os._exit(code)
    return pid

def run(target):
    started_s = time.monotonic()
    assert os.waitpid(start(target), 0)[1] == 0
    return time.monotonic() - started_s

whole_s = min(run(out.with_name(name)) for name in ("first", "second"))
chance = random.Random(20)
kills = []
for attempt in range(60):
    moment_s = chance.uniform(0, whole_s)
    pid = start(out)
    time.sleep(moment_s)
    os.kill(pid, signal.SIGKILL)
    was_killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    left = sorted(p.name for p in out.parent.iterdir() if p.name.startswith(".out.partial-"))
    kills.append({"killed": was_killed, "whole": tree_digest(out) if out.exists() else None, "left": left})
    if out.exists():
        shutil.rmtree(out)
    if sum(kill["killed"] for kill in kills) == 20:
        break
assert os.waitpid(start(out), 0)[1] == 0
print(json.dumps(kills))
"""


def test_twenty_kills_at_random_moments(merged_manifest, merged: Path, two: Path, sources, tmp_path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", TWENTY_KILLS, str(merged_manifest.file), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)
    assert sum(kill["killed"] for kill in kills) == 20
    assert {kill["whole"] for kill in kills} <= {None, tree_digest(merged)}
    # Kills while files were being written are among them.
    assert sum(any(not name.endswith("-lock") for name in kill["left"]) for kill in kills) >= 5
    # The partial folder has one name for one plan: attempts do not pile up.
    assert len({name for kill in kills for name in kill["left"] if not name.endswith("-lock")}) == 1
    assert tree_digest(out) == tree_digest(merged)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first", "out", "second"]
    assert state_of_tree(two) == sources


KILLED = """
import sys, time
from pathlib import Path
from stack.dataset.write_plan import Caps
from stack.manifests import load_dataset_manifest
from stack.prepare import prepare

def main():
    manifest, out, jobs, at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    times, _, at = at.rpartition("/")  # "2/data files": the second such line
    seen = []
    def slow(line):
        seen.append(line.startswith(at))
        if seen[-1] and sum(seen) == int(times or 1):
            print("writing", flush=True)
            time.sleep(60)
    caps = Caps(data_mb=0.0015, video_mb=0.004, files_per_chunk=2)
    prepare(load_dataset_manifest(manifest), out=out, jobs=jobs, log=slow, caps=caps)

if __name__ == "__main__":
    main()
"""


def start(manifest: Path, out: Path, line: str, *, jobs: int = 1) -> subprocess.Popen[str]:
    """A process that prepares until this line of progress, and then does no more."""
    script = out.parent.parent / "killed.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(manifest), str(out), str(jobs), line]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def kill_at(line: str, manifest: Path, out: Path, *, jobs: int = 1) -> int:
    """Prepare until this line of progress, kill -9; returns the dead process' group."""
    process = start(manifest, out, line, jobs=jobs)
    end(process)
    return process.pid


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_kill_leaves_no_target_and_no_worker(merged_manifest, tmp_path: Path, jobs: int) -> None:
    out = tmp_path / "target" / "out"
    group = kill_at("video files", merged_manifest.file, out, jobs=jobs)
    assert not out.exists()
    left = [p for p in out.parent.iterdir() if p.is_dir()]
    assert len(left) == 1 and left[0].name.startswith(".out.partial-")
    assert list(left[0].rglob("*.parquet"))
    deadline = time.monotonic() + 20
    while _group_alive(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _group_alive(group)
    prepare(merged_manifest, out=out, jobs=1)
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def _group_alive(group: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


@pytest.fixture
def killed(merged_manifest, tmp_path: Path) -> tuple[Path, Path]:
    """(target, partial folder) after a kill with all data and video files written."""
    out = tmp_path / "target" / "out"
    kill_at("clips sampled", merged_manifest.file, out)
    (partial,) = [p for p in out.parent.iterdir() if p.is_dir()]
    return out, partial


def output_files(root: Path) -> dict[str, Path]:
    found = [*(root / "data").rglob("*.parquet"), *(root / "videos").rglob("*.mp4")]
    return {file.relative_to(root).as_posix(): file for file in found}


def test_the_next_call_keeps_finished_files(merged_manifest, merged: Path, killed) -> None:
    out, partial = killed
    before = {name: (f.stat().st_ino, f.stat().st_mtime_ns) for name, f in output_files(partial).items()}
    assert set(before) == set(output_files(merged)) and len(before) > 8
    lines: list[str] = []
    prepare(merged_manifest, out=out, jobs=1, caps=CAPS, log=lines.append)
    after = {name: (f.stat().st_ino, f.stat().st_mtime_ns) for name, f in output_files(out).items()}
    assert after == before
    videos = len(list((out / "videos").rglob("*.mp4")))
    (told,) = [line for line in lines if line.startswith("video files")]
    assert told.endswith(f", {videos} of them finished by an earlier call")
    assert tree_digest(out) == tree_digest(merged)


def test_nothing_half_written_is_trusted(merged_manifest, merged: Path, killed) -> None:
    """A cut file, a changed byte, a file without a record, a broken record, somebody's own file."""
    out, partial = killed
    data, more = sorted((partial / "data").rglob("*.parquet"))[:2]
    video, other = sorted((partial / "videos").rglob("*.mp4"))[:2]
    os.truncate(data, data.stat().st_size - 9)
    content = bytearray(video.read_bytes())
    content[len(content) // 2] ^= 1
    video.write_bytes(bytes(content))
    (partial / "videos" / "stray.mp4").write_bytes(other.read_bytes())
    (partial / "meta").mkdir(exist_ok=True)
    (partial / "meta" / "stray.json").write_text("{}")
    kept = {file: file.stat().st_ino for file in (more, other)}
    bad = {file: file.stat().st_ino for file in (data, video)}
    records = sorted(p for p in (partial / RECORDS).iterdir() if p.is_file())
    records[0].write_bytes(records[0].read_bytes()[:-1])
    records[1].unlink()
    lines: list[str] = []
    prepare(merged_manifest, out=out, jobs=1, caps=CAPS, log=lines.append)
    assert tree_digest(out) == tree_digest(merged)
    inode = {file: (out / file.relative_to(partial)).stat().st_ino for file in (*kept, *bad)}
    assert all(inode[file] != number for file, number in bad.items())
    reused = [line for line in lines if "finished by an earlier call" in line]
    assert reused and not all(f" {len(output_files(out))} of them" in line for line in reused)


def test_a_record_is_data_and_runs_nothing(killed, merged_manifest, tmp_path: Path, merged: Path) -> None:
    import hashlib
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    out, partial = killed
    for record in (p for p in (partial / RECORDS).iterdir() if p.is_file()):
        payload = pickle.dumps(Evil())
        record.write_bytes(hashlib.sha256(payload).digest() + payload)
    prepare(merged_manifest, out=out, jobs=1, caps=CAPS)
    assert not (tmp_path / "ran").exists() and tree_digest(out) == tree_digest(merged)


def test_another_plan_starts_afresh(merged_manifest, killed) -> None:
    out, _ = killed
    lines: list[str] = []
    prepare(merged_manifest, out=out, jobs=1, caps=Caps(), log=lines.append)
    assert not [line for line in lines if "earlier call" in line]
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_a_source_touched_since_the_kill_is_read_again(load, two: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(two / "a", tmp_path / "a"))
    loaded = load(f"sources: [{{path: {root}}}]")
    out = tmp_path / "target" / "out"
    kill_at("clips sampled", _inside(loaded.file), out)
    os.utime(root / "data/chunk-000/episode_000000.parquet", ns=(1, 1))
    lines: list[str] = []
    prepare(loaded, out=out, jobs=1, caps=CAPS, log=lines.append)
    assert not [line for line in lines if "earlier call" in line]


def _inside(manifest: Path) -> Path:
    """Manifests read nothing outside their folder unless told to; the script does not tell."""
    assert manifest.parent.joinpath("a").is_dir()
    return manifest


def test_another_process_at_the_same_target_is_refused_and_harms_nothing(
    merged_manifest, merged: Path, tmp_path: Path
) -> None:
    """The second call ends before it touches what the first one uses."""
    out = tmp_path / "target" / "out"
    process = start(merged_manifest.file, out, "video files")
    try:
        before = sorted(p.relative_to(out.parent) for p in out.parent.rglob("*"))
        with pytest.raises(StackError) as caught:
            prepare(merged_manifest, out=out, jobs=1, caps=CAPS)
        assert (caught.value.id, caught.value.exit) == ("target-busy", Exit.NOT_ABLE)
        assert sorted(p.relative_to(out.parent) for p in out.parent.rglob("*")) == before
    finally:
        end(process)
    prepare(merged_manifest, out=out, jobs=1, caps=CAPS)
    assert tree_digest(out) == tree_digest(merged)


# Disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Any]:
    """Mount a file system of so many bytes; the same call again gives it another size."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size_bytes: int, *options: str) -> Path:
        again = ["remount"] if os.path.ismount(folder) else []
        text = ",".join([*again, f"size={size_bytes}", *options])
        command = ["mount", "-t", "tmpfs", "-o", text, "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a small disk takes root")
        return folder

    yield mount
    if os.path.ismount(folder):
        subprocess.run(["umount", "-l", str(folder)], check=True)


def size_on_disk(root: Path) -> int:
    return sum(-(-file.stat().st_size // 4096) * 4096 for file in root.rglob("*") if file.is_file())


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_full_disk(merged_manifest, merged: Path, two: Path, sources, small_disk, jobs: int) -> None:
    disk = small_disk(size_on_disk(merged) // 2)
    with pytest.raises(StackError) as caught:
        prepare(merged_manifest, out=disk / "out", jobs=jobs, caps=CAPS)
    assert (caught.value.id, caught.value.exit) == ("disk-not-able", Exit.NOT_ABLE)
    assert "the disk is full" in caught.value.what and str(disk) in caught.value.what
    assert list(disk.iterdir()) == []
    small_disk(64 << 20)
    prepare(merged_manifest, out=disk / "out", jobs=1, caps=CAPS)
    assert tree_digest(disk / "out") == tree_digest(merged)
    assert state_of_tree(two) == sources


def test_a_disk_that_is_too_small_is_told_before_writing(merged_manifest, two: Path, small_disk) -> None:
    disk = small_disk(4096)
    with pytest.raises(StackError) as caught:
        prepare(merged_manifest, out=disk / "out", jobs=1)
    assert (caught.value.id, caught.value.exit) == ("disk-too-small", Exit.NOT_ABLE)
    assert list(disk.iterdir()) == []


def test_a_full_disk_keeps_the_dataset_that_is_to_be_replaced(
    merged_manifest, merged: Path, small_disk
) -> None:
    disk = small_disk(size_on_disk(merged) * 3 // 2)
    prepare(merged_manifest, out=disk / "out", jobs=1, caps=CAPS)
    with pytest.raises(StackError, match="the disk is full"):
        prepare(merged_manifest, out=disk / "out", jobs=1, replace=True, caps=CAPS)
    assert [p.name for p in disk.iterdir()] == ["out"]
    assert tree_digest(disk / "out") == tree_digest(merged)


def test_a_read_only_disk(merged_manifest, small_disk) -> None:
    disk = small_disk(1 << 20)
    small_disk(1 << 20, "ro")
    with pytest.raises(StackError) as caught:
        prepare(merged_manifest, out=disk / "out", jobs=1)
    assert (caught.value.id, caught.value.exit) == ("folder-not-writable", Exit.NOT_ABLE)
    assert str(disk) in caught.value.where


LIMITED = """
import resource, sys
from pathlib import Path
from stack.errors import StackError
from stack.manifests import load_dataset_manifest
from stack.prepare import prepare

resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
try:
    prepare(load_dataset_manifest(Path(sys.argv[1])), out=Path(sys.argv[2]), jobs=1)
except StackError as error:
    print(error)
"""


def test_a_file_that_may_not_grow(merged_manifest, tmp_path: Path) -> None:
    """What a quota does, without being root."""
    out = tmp_path / "disk" / "out"
    command = [sys.executable, "-c", LIMITED, str(merged_manifest.file), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.startswith("error[disk-not-able]: the file would be larger than"), done.stderr
    assert "ulimit -f" in done.stdout
    assert list(out.parent.iterdir()) == []


# Replacing


def test_replace_swaps_a_dataset_and_only_a_dataset(merged_manifest, load, two: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(load(f"sources: [{{path: {two}/a}}]"), out=out, jobs=1)
    with pytest.raises(StackError) as caught:
        prepare(merged_manifest, out=out, jobs=1)
    assert caught.value.id == "target-exists" and "--replace" in caught.value.do
    done = prepare(merged_manifest, out=out, jobs=1, replace=True)
    assert json.loads((out / "meta/info.json").read_text())["total_episodes"] == done.episodes == 7
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("keep")
    with pytest.raises(StackError) as caught:
        prepare(merged_manifest, out=home, jobs=1, replace=True)
    assert caught.value.id == "target-not-dataset" and (home / "thesis.txt").read_text() == "keep"
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["home", "out"]


def test_a_source_is_never_written_over(load, two: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(two / "a", tmp_path / "a"))
    before = state_of_tree(root)
    loaded = load(f"sources: [{{path: {root}}}]")
    for out, told in (
        (root, "target-holds-source"),
        (tmp_path, "target-not-dataset"),
        (root / "prepared", "target-in-source"),
    ):
        with pytest.raises(StackError) as caught:
            prepare(loaded, out=out, jobs=1, replace=True)
        assert caught.value.id in (told, "target-in-source")
    assert state_of_tree(root) == before


# Sources that are not what they were, or not what they seem


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "data/chunk-000/episode_000002.parquet").unlink(),
        lambda root: _append(root / "videos/chunk-001/observation.images.head/episode_000003.mp4"),
        lambda root: _append(root / "meta/episodes.jsonl"),
    ],
    ids=["a row file removed", "a video that grows", "the episode table grows"],
)
def test_a_source_that_changes_underneath(load, two: Path, tmp_path: Path, change: Any) -> None:
    root = Path(shutil.copytree(two / "a", tmp_path / "a"))
    before = {file: file.stat().st_size for file in root.rglob("*") if file.is_file()}
    loaded = load(f"sources: [{{path: {root}}}]")
    out = tmp_path / "target" / "out"

    def log(line: str) -> None:
        if line.startswith("checking what was written"):
            change(root)

    with pytest.raises(StackError) as caught:
        prepare(loaded, out=out, jobs=1, log=log)
    assert (caught.value.id, caught.value.exit) == ("source-changed", Exit.WORK_FAILED)
    (changed,) = [f for f, size in before.items() if not f.exists() or f.stat().st_size != size]
    assert caught.value.where == str(changed) and f"{before[changed]:,} bytes" in caught.value.what
    assert list(out.parent.iterdir()) == []
    # A file that nobody reads may change.
    (root / "notes.txt").write_text("1")
    shutil.rmtree(root)
    shutil.copytree(two / "a", root)
    prepare(loaded, out=out, jobs=1, log=lambda line: (root / "notes.txt").write_text(line) and None)


def _append(file: Path) -> None:
    with file.open("ab") as handle:
        handle.write(b"\n")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_corrupt_clip_in_the_middle(load, two: Path, tmp_path: Path, jobs: int) -> None:
    """Its packets can be counted and copied, but its pictures cannot be decoded."""
    root = Path(shutil.copytree(two / "a", tmp_path / "a"))
    clip = root / "videos/chunk-000/observation.images.head/episode_000002.mp4"
    content = bytearray(clip.read_bytes())
    start = content.index(b"mdat") + 4
    end = content.index(b"moov") - 4 if content.index(b"moov") > start else len(content)
    content[start:end] = bytes(b ^ 0xFF for b in content[start:end])
    clip.write_bytes(bytes(content))
    out = tmp_path / "target" / "out"
    with pytest.raises(StackError) as caught:
        prepare(load(f"sources: [{{path: {root}}}]"), out=out, jobs=jobs)
    assert str(clip) in str(caught.value) and "episode 2 of 'a'" in str(caught.value)
    assert list(out.parent.iterdir()) == []


def test_a_cut_off_clip(load, two: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(two / "a", tmp_path / "a"))
    clip = root / "videos/chunk-000/observation.images.head/episode_000002.mp4"
    os.truncate(clip, clip.stat().st_size * 2 // 3)
    out = tmp_path / "target" / "out"
    with pytest.raises(StackError) as caught:
        prepare(load(f"sources: [{{path: {root}}}]"), out=out, jobs=1)
    assert str(clip) in str(caught.value)
    assert list(out.parent.iterdir()) == []


# A split


SPLIT = "schema: stack/dataset/1\nname: test\nsources: [{path: a}]\nsplit: {train: [0, 1, 2], val: rest}\n"


@pytest.fixture(scope="module")
def split(two: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """(manifest, what a kill in the second part left, what should have come of it)."""
    root = tmp_path_factory.mktemp("split")
    shutil.copytree(two / "a", root / "a")
    manifest = root / "dataset.yaml"
    manifest.write_text(SPLIT)
    kill_at("2/video files", manifest, root / "target" / "out")
    right = prepare(load_dataset_manifest(manifest), out=root / "right", jobs=1, caps=CAPS)
    return manifest, root / "target", right


def test_a_split_goes_on_after_a_kill(split, tmp_path: Path) -> None:
    """The part that was finished is kept as it stands, the other goes on."""
    manifest, left, right = split
    target = Path(shutil.copytree(left, tmp_path / "target"))
    (partial,) = [p for p in target.iterdir() if p.is_dir()]
    whole = {f: f.stat().st_ino for f in (partial / "train").rglob("*") if f.is_file()}
    (half,) = partial.glob(".val.partial-*/")
    made = {f.name: f.stat().st_ino for f in output_files(half).values()}
    assert whole and made and not (partial / "val").exists()
    (partial / "notes.txt").write_text("somebody's")
    (partial / "other").mkdir()
    lines: list[str] = []
    out = target / "out"
    done = prepare(load_dataset_manifest(manifest), out=out, jobs=1, caps=CAPS, log=lines.append)
    assert "part train: finished by an earlier call" in lines
    assert all((out / file.relative_to(partial)).stat().st_ino == number for file, number in whole.items())
    kept = {f.name: f.stat().st_ino for f in output_files(out / "val").values()}
    assert made.items() <= kept.items()
    assert tree_digest(out) == tree_digest(right.out)
    assert [p.name for p in target.iterdir()] == ["out"]
    assert sorted(p.name for p in out.iterdir()) == ["train", "val"]
    for part, other in zip(done.parts, right.parts, strict=True):
        assert (part.episodes, part.frames, part.notes) == (other.episodes, other.frames, other.notes)
        assert part.content_digest == other.content_digest


@pytest.mark.parametrize(
    "spoil", ["a byte", "a file more", "a file less", "no provenance", "a source touched"]
)
def test_a_part_that_is_not_what_it_was_is_written_again(split, tmp_path: Path, spoil: str) -> None:
    manifest, left, right = split
    target = Path(shutil.copytree(left, tmp_path / "target"))
    (partial,) = [p for p in target.iterdir() if p.is_dir()]
    (file, *_) = output_files(partial / "train").values()
    if spoil == "a byte":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(bytes(content))
    elif spoil == "a file more":
        file.with_name("file-999.parquet").write_bytes(file.read_bytes())
    elif spoil == "a file less":
        file.unlink()
    elif spoil == "no provenance":
        (partial / "train/meta/provenance.json").unlink()
    else:
        os.utime(manifest.parent / "a/data/chunk-001/episode_000004.parquet", ns=(1, 1))
    lines: list[str] = []
    prepare(load_dataset_manifest(manifest), out=target / "out", jobs=1, caps=CAPS, log=lines.append)
    assert not [line for line in lines if line.startswith("part train")]
    assert tree_digest(target / "out") == tree_digest(right.out)
