"""Big files are hashed once while they arrive, and not again as long as they look unchanged."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stack.mirror import get, verify
from stack.mirror.watching import Watch

BIG = "big.bin"
HUNDRED_MB = 100_000_000


@pytest.fixture
def big(hub: Any) -> bytes:
    hub.files[BIG] = bytes(range(256)) * (HUNDRED_MB // 256)
    return bytes(hub.files[BIG])


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of files that were read again from the disk to be hashed whole."""
    from stack.mirror import folder

    names: list[str] = []
    real = folder.sha256_file

    def counted(path: Path) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(folder, "sha256_file", counted)
    return names


def test_big_file_is_hashed_on_its_way_and_then_left_alone(
    hub: Any, manifest: Any, tmp_path: Path, big: bytes, hashed: list[str]
) -> None:
    loaded = manifest()
    lines: list[str] = []
    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert (model.folder / BIG).read_bytes() == big
    get(loaded, tmp_path / "mirror", endpoint=hub.endpoint, log=lines.append)
    assert BIG not in hashed
    assert any("nothing to do" in line and f"{BIG} by size, time and samples" in line for line in lines)
    (note,) = verify(loaded.manifest, tmp_path / "mirror", fast=True)
    assert (note.code, note.severity) == ("mirror-not-hashed", "note")
    assert BIG not in hashed
    assert verify(loaded.manifest, tmp_path / "mirror") == []
    assert BIG in hashed


def test_fast_look_sees_another_time_and_other_samples(
    hub: Any, manifest: Any, tmp_path: Path, big: bytes, hashed: list[str]
) -> None:
    loaded = manifest()
    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    file = model.folder / BIG
    stat = file.stat()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert verify(loaded.manifest, tmp_path / "mirror", fast=True) == []  # hashed whole, and right
    assert hashed.count(BIG) == 1

    with file.open("r+b") as stream:  # the last byte is in a sample
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\0")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (fault,) = verify(loaded.manifest, tmp_path / "mirror", fast=True)
    assert fault.code == "mirror-file-wrong-hash"
    hub.served.clear()
    get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert hub.fetched() == [BIG] and file.read_bytes() == big


def test_resumed_file_has_a_hash_over_all_of_it(
    hub: Any, manifest: Any, tmp_path: Path, big: bytes, hashed: list[str]
) -> None:
    loaded = manifest()
    hub.drop_after[BIG] = [30_000_000, 1]
    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert (model.folder / BIG).read_bytes() == big and BIG not in hashed


def test_started_over_file_is_hashed_from_the_disk(
    hub: Any, manifest: Any, tmp_path: Path, big: bytes, hashed: list[str]
) -> None:
    loaded = manifest()
    staging = tmp_path / "mirror" / ".toy.fetch"
    staging.mkdir(parents=True)
    (staging / f"{BIG}.incomplete").write_bytes(b"\xff" * 20_000_000)

    def whole(handler: Any, content: bytes, first: int) -> None:
        handler.head(200, {"Content-Length": len(content)})
        handler.wfile.write(content)

    hub.answers[BIG] = [whole]
    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert (model.folder / BIG).read_bytes() == big and hashed.count(BIG) == 1


def test_watch_gives_no_hash_for_what_it_did_not_see(tmp_path: Path) -> None:
    content = os.urandom(1_000_000)
    partial, target = tmp_path / "x.incomplete", tmp_path / "x"

    def download(*, replaced: bool = False, again: bool = False, back: bool = False) -> str | None:
        watch = Watch(partial, target, len(content), lambda _: None)
        told = watch.callback()("x", len(content))  # type: ignore[call-arg]
        with partial.open("wb") as stream:
            for at in range(0, len(content), 100_000):
                stream.write(content[at : at + 100_000])
                told.update(len(content[at : at + 100_000]))  # type: ignore[attr-defined]
        if again:
            watch.callback()("x", len(content))  # type: ignore[call-arg]
        if back:
            told.update(-5)  # type: ignore[attr-defined]
        while replaced and watch._inode is None:  # else it may find the other file, whose hash is right
            time.sleep(0.01)
        partial.rename(target)
        if replaced:
            target.rename(tmp_path / "kept")
            target.write_bytes(content)
        return watch.sha256()

    assert download() == hashlib.sha256(content).hexdigest()
    assert download(again=True) is None
    assert download(back=True) is None
    assert download(replaced=True) is None


def test_progress_is_told_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stack.mirror.watching.SAY_EVERY_S", 0.05)
    lines: list[str] = []
    (tmp_path / "x.incomplete").write_bytes(b"")
    watch = Watch(tmp_path / "x.incomplete", tmp_path / "x", 4_000_000, lines.append)
    told = watch.callback()("x", 4_000_000)  # type: ignore[call-arg]
    told.update(1_000_000)  # type: ignore[attr-defined]
    time.sleep(0.1)
    told.update(1_000_000)  # type: ignore[attr-defined]
    watch.close()
    assert len(lines) == 1 and lines[0].startswith("2.0 of 4.0 MB, ")


class Counted(io.FileIO):
    """A file that knows how often it was read."""

    reads = 0

    def read(self, size: int | None = -1, /) -> Any:
        self.reads += 1
        return super().read(-1 if size is None else size)


def test_bytes_in_the_clients_buffer_are_waited_for_without_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial, target = tmp_path / "x.incomplete", tmp_path / "x"
    content = os.urandom(50_000)
    watch = Watch(partial, target, len(content), lambda _: None)
    told = watch.callback()("x", len(content))  # type: ignore[call-arg]
    with partial.open("wb", buffering=1 << 20) as stream:
        followed = Counted(str(partial))
        monkeypatch.setattr(watch, "_open", lambda: followed)
        stream.write(content)
        told.update(len(content))  # type: ignore[attr-defined]
        assert partial.stat().st_size == 0
        time.sleep(0.5)
        assert followed.reads < 3
    partial.rename(target)
    assert watch.sha256() == hashlib.sha256(content).hexdigest()


def test_a_file_shorter_than_was_told_ends_the_watch_with_the_hash_of_what_is_there(tmp_path: Path) -> None:
    partial, target = tmp_path / "x.incomplete", tmp_path / "x"
    partial.write_bytes(b"abc")
    watch = Watch(partial, target, 100, lambda _: None)
    told = watch.callback()("x", 100)  # type: ignore[call-arg]
    told.update(100)  # type: ignore[attr-defined]
    partial.rename(target)
    found: list[str | None] = []
    ending = threading.Thread(target=lambda: found.append(watch.sha256()), daemon=True)
    ending.start()
    ending.join(20)
    assert found == [hashlib.sha256(b"abc").hexdigest()]
