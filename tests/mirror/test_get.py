"""`get` through the real client against the loopback hub: what arrives is what the manifest pins."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest, NotAble, WorkFailed
from stack.mirror import get, verify
from stack.mirror.folder import RECORD

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = "model.safetensors"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != RECORD
    }


def said(to: Path) -> Path:
    return to.parent / "said.txt"


def child(manifest: Path, to: Path, endpoint: str) -> subprocess.Popen[bytes]:
    code = (
        "import sys; from pathlib import Path; from stack.mirror import get; "
        "from stack.manifests import load_models_manifest as load; "
        "said = Path(sys.argv[4]).open('a', buffering=1); "
        "models = get(load(Path(sys.argv[1])), Path(sys.argv[2]), endpoint=sys.argv[3], "
        "log=lambda line: print(line, file=said)); "
        "print(len(models[0].fetched))"
    )
    arguments = [sys.executable, "-c", code, str(manifest), str(to), endpoint, str(said(to))]
    return subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_fetches_the_listed_files_only(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    expected = dict(hub.files)
    hub.files["not-in-the-manifest.bin"] = b"x"

    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert contents(model.folder) == expected
    assert set(model.fetched) == set(expected)
    assert "not-in-the-manifest.bin" not in hub.fetched()
    assert verify(loaded.manifest, tmp_path / "mirror") == []
    record = json.loads((model.folder / RECORD).read_text())
    assert record["origin"] == "modelscope:lab/toy@0123456789abcdef0123456789abcdef01234567"
    assert record["files"]["config.json"]["size"] == 9
    assert list((tmp_path / "home").iterdir()) == []


def test_second_call_asks_nothing(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    hub.requests.clear()

    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert model.fetched == ()
    assert hub.requests == []


def test_whole_mirror_is_only_read(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    (before,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    (tmp_path / "mirror" / ".toy.lock").unlink()
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "mirror").rglob("*")}

    (after,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "mirror").rglob("*")} == stamps
    assert after.digest == before.digest


def test_dropped_connection_is_resumed(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    hub.drop_after[WEIGHTS] = [100_000, 50_000]

    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert (model.folder / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    served = [(first, sent) for path, first, sent in hub.served if path == WEIGHTS]
    assert served == [(0, 100_000), (100_000, 50_000), (150_000, 150_000)]


def test_one_flipped_bit_of_the_right_size_is_fetched_again(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    hub.flip[WEIGHTS] = 1
    lines: list[str] = []

    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint, log=lines.append)

    assert (model.folder / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    assert hub.fetched().count(WEIGHTS) == 2
    assert any("attempt 2 of 2" in line for line in lines)


def test_flipped_bit_that_stays_is_an_error_with_both_hashes(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    hub.flip[WEIGHTS] = 99

    with pytest.raises(WorkFailed) as caught:
        get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    (pinned,) = [file for file in loaded.manifest.models["toy"].files if file.path == WEIGHTS]
    assert f"expected sha256 {pinned.sha256}, got " in caught.value.what
    assert "damaged on the way" in caught.value.what  # the hub lists what is pinned
    assert not (tmp_path / "mirror" / "toy").exists()
    assert not list((tmp_path / "mirror" / ".toy.fetch").glob(f"{WEIGHTS}*"))


def test_hub_with_other_content_is_told_apart_from_damage(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    hub.files[WEIGHTS] = hub.files[WEIGHTS][::-1]

    with pytest.raises(WorkFailed, match="the manifest and the hub disagree") as caught:
        get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert "1 of 3 files" in caught.value.what


def test_hub_that_vouches_for_a_wrong_file_is_not_believed(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    hub.listed_sha256[WEIGHTS] = "0" * 64
    get(loaded, tmp_path / "right", endpoint=hub.endpoint)  # a lie about a right file does no harm

    hub.files[WEIGHTS] = bytes(len(hub.files[WEIGHTS]))
    with pytest.raises(WorkFailed, match="which is neither"):
        get(loaded, tmp_path / "wrong", endpoint=hub.endpoint)
    assert not (tmp_path / "wrong" / "toy").exists()


def test_truncated_file_on_the_hub_gives_both_sizes(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    hub.files[WEIGHTS] = hub.files[WEIGHTS][:123_456]

    with pytest.raises(WorkFailed) as caught:
        get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert "123456" in caught.value.what and "300000" in caught.value.what
    assert not (tmp_path / "mirror" / "toy").exists()


def test_missing_file_fails_the_whole_and_the_next_call_fetches_only_it(
    hub: Any, manifest: Any, tmp_path: Path
) -> None:
    loaded = manifest()
    hub.gone.add("config.json")
    with pytest.raises(
        WorkFailed, match=r"1 of 3 files could not be mirrored: config\.json is not in lab/toy"
    ):
        get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert not (tmp_path / "mirror" / "toy").exists()
    assert set(hub.fetched()) == {WEIGHTS, "sub/notes.txt"}

    hub.gone.clear()
    hub.served.clear()
    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert hub.fetched() == ["config.json"]
    assert model.fetched == ("config.json",)
    assert contents(model.folder) == hub.files
    assert not (tmp_path / "mirror" / ".toy.fetch").exists()


def test_every_wrong_file_is_named(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    hub.gone |= {"config.json", "sub/notes.txt"}

    with pytest.raises(WorkFailed, match="2 of 3 files") as caught:
        get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert "config.json" in caught.value.what and "sub/notes.txt" in caught.value.what


def test_unknown_revision_is_an_error(hub: Any, manifest: Any, tmp_path: Path) -> None:
    with pytest.raises(WorkFailed, match=r"(?s)3 of 3 files.*at revision main"):
        get(manifest(revision="main"), tmp_path / "mirror", endpoint=hub.endpoint)


def test_only_the_damaged_file_of_a_mirror_is_fetched(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    damaged = bytearray((model.folder / WEIGHTS).read_bytes())
    damaged[7] ^= 0x80
    (model.folder / WEIGHTS).write_bytes(damaged)
    hub.served.clear()

    (mended,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert hub.fetched() == [WEIGHTS]
    assert mended.fetched == (WEIGHTS,)
    assert contents(mended.folder) == hub.files


def test_files_carried_by_hand_are_adopted_without_the_hub(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    for path, content in hub.files.items():
        (tmp_path / "mirror" / "toy" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mirror" / "toy" / path).write_bytes(content)

    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert hub.requests == [] and model.fetched == ()
    assert json.loads((model.folder / RECORD).read_text())["name"] == "toy"


def test_right_files_on_a_read_only_disk_need_no_record(
    hub: Any, manifest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = manifest()
    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    (model.folder / RECORD).unlink()
    (tmp_path / "mirror" / ".toy.lock").unlink()
    monkeypatch.setattr("os.access", lambda *_: False)

    get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert not (model.folder / RECORD).exists() and not (tmp_path / "mirror" / ".toy.lock").exists()


def test_link_in_the_place_is_not_replaced(hub: Any, manifest: Any, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "toy").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadRequest, match="is a link"):
        get(manifest(), tmp_path / "mirror", endpoint=hub.endpoint)
    assert hub.requests == []


def test_full_disk_in_the_middle_is_the_environments_fault(
    hub: Any, manifest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("stack.mirror.mirroring.write_json", full)
    with pytest.raises(NotAble, match="No space left"):
        get(manifest(), tmp_path / "mirror", endpoint=hub.endpoint)
    assert not (tmp_path / "mirror" / "toy").exists()


def test_foreign_files_in_the_place_are_not_deleted(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    place = tmp_path / "mirror" / "toy"
    place.mkdir(parents=True)
    (place / "thesis.doc").write_text("years of work")

    with pytest.raises(BadRequest, match=r"thesis\.doc"):
        get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert (place / "thesis.doc").read_text() == "years of work"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopped_fetch_leaves_no_half_model_and_is_resumed(
    how: signal.Signals, hub: Any, manifest: Any, tmp_path: Path
) -> None:
    loaded = manifest()
    hub.stall_after[WEIGHTS] = 200_000
    process = child(loaded.file, tmp_path / "mirror", hub.endpoint)
    try:
        assert hub.stalled.wait(60)
        partial = tmp_path / "mirror" / ".toy.fetch" / f"{WEIGHTS}.incomplete"
        _wait_for(lambda: partial.is_file() and partial.stat().st_size > 0)
    finally:
        process.send_signal(how)
        process.communicate()
    kept = partial.stat().st_size
    assert not (tmp_path / "mirror" / "toy").exists()
    assert [f.code for f in verify(loaded.manifest, tmp_path / "mirror")] == [
        "mirror-model-missing",
        "mirror-unfinished",
    ]

    hub.release.set()
    hub.stall_after.clear()
    hub.served.clear()
    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert (WEIGHTS, kept, 300_000 - kept) in hub.served
    assert "config.json" not in hub.fetched()  # it came before the stop
    assert contents(model.folder) == hub.files


def test_a_partial_file_of_other_content_does_not_poison_the_result(
    hub: Any, manifest: Any, tmp_path: Path
) -> None:
    loaded = manifest()
    staging = tmp_path / "mirror" / ".toy.fetch"
    staging.mkdir(parents=True)
    (staging / f"{WEIGHTS}.incomplete").write_bytes(b"\0" * 1000)

    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert [first for path, first, _ in hub.served if path == WEIGHTS] == [1000, 0]
    assert (model.folder / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def test_several_processes_fetch_each_file_once(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    hub.stall_after[WEIGHTS] = 300_000  # the first one holds the lock until all are at it
    processes = [child(loaded.file, tmp_path / "mirror", hub.endpoint) for _ in range(3)]
    assert hub.stalled.wait(60)
    _wait_for(lambda: said(tmp_path / "mirror").read_text().count("waiting for another process") == 2)
    hub.release.set()
    outputs = [process.communicate(timeout=100) for process in processes]

    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert sorted(hub.fetched()) == sorted(hub.files)
    assert sorted(int(out) for out, _ in outputs) == [0, 0, 3]
    assert verify(loaded.manifest, tmp_path / "mirror") == []


def test_hub_that_is_away_is_the_environments_fault(
    hub: Any, manifest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelscope_hub._download.DOWNLOAD_RETRY_TIMES", 1)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    loaded = manifest()
    with pytest.raises(NotAble) as caught:
        get(loaded, tmp_path / "mirror", endpoint=endpoint)
    assert caught.value.id == "mirror-unreachable" and caught.value.where == endpoint
    assert "sub/notes.txt was not tried" in caught.value.what


def test_file_that_always_breaks_off_does_not_keep_the_others_back(
    hub: Any, manifest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelscope_hub._download.DOWNLOAD_RETRY_TIMES", 1)
    loaded = manifest()
    hub.drop_after["config.json"] = [0] * 99
    with pytest.raises(WorkFailed, match=r"1 of 3 files could not be mirrored: config\.json"):
        get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert not (tmp_path / "mirror" / "toy").exists()

    hub.drop_after.clear()
    hub.served.clear()
    get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert hub.fetched() == ["config.json"]


def test_unpinned_model_is_refused_with_the_command_that_pins_it(
    hub: Any, manifest: Any, tmp_path: Path
) -> None:
    loaded = manifest(unpinned=(WEIGHTS,))

    with pytest.raises(BadRequest, match=WEIGHTS) as caught:
        get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert "stack mirror pin" in caught.value.do and "--only toy" in caught.value.do
    assert hub.requests == []


def test_unknown_name_gets_the_nearest(manifest: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="did you mean 'toy'"):
        get(manifest(), tmp_path / "mirror", names=["toj"])


def test_demo_model_without_a_demo_folder(manifest: Any, tmp_path: Path) -> None:
    more = "  d: {kind: weights, origin: {demo: d}, licence: x, files: [{path: a, size: 1, sha256: '%s'}]}\n"
    loaded = manifest(more=more % ("0" * 64))
    with pytest.raises(BadRequest) as caught:
        get(loaded, tmp_path / "mirror", names=["d"])
    assert caught.value.id == "mirror-demo-not-given" and "stack demo" in caught.value.do


def test_changed_demo_file_is_refused(manifest: Any, tmp_path: Path) -> None:
    more = "  d: {kind: weights, origin: {demo: d}, licence: x, files: [{path: a, size: 1, sha256: '%s'}]}\n"
    loaded = manifest(more=more % ("0" * 64))
    (tmp_path / "demo" / "models" / "d").mkdir(parents=True)
    (tmp_path / "demo" / "models" / "d" / "a").write_bytes(b"x")
    with pytest.raises(WorkFailed, match=f"expected sha256 {'0' * 64}, got 2d711642"):
        get(loaded, tmp_path / "mirror", names=["d"], demo=tmp_path / "demo")
    assert (tmp_path / "demo" / "models" / "d" / "a").read_bytes() == b"x"
    assert not (tmp_path / "mirror" / "d").exists()


def test_read_only_target_is_the_environments_fault(hub: Any, manifest: Any, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(NotAble, match="cannot write"):
        get(manifest(), blocked / "mirror", endpoint=hub.endpoint)


def test_too_little_room_is_said_before_anything_is_fetched(
    hub: Any, manifest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = manifest()
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(NotAble, match=r"needs 300,0\d\d bytes more, 1,000 are free"):
        get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert hub.requests == []


def test_token_is_sent_only_when_given(
    hub: Any, manifest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = manifest()
    get(loaded, tmp_path / "a", endpoint=hub.endpoint)
    assert not any("secret" in str(headers) or "Authorization" in headers for headers in hub.headers)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "secret")
    get(loaded, tmp_path / "b", endpoint=hub.endpoint)
    assert any("secret" in str(headers) for headers in hub.headers)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_big_files_may_take_long() -> None:
    """The client's own limit of an hour would cut off 14.5 GB at less than 4 MB/s."""
    code = (
        "import os; from pathlib import Path; from stack.mirror.hub import Hub; Hub('http://127.0.0.1:9', "
        "Path(os.devnull)); from modelscope_hub import constants; print(constants.DOWNLOAD_TOTAL_TIMEOUT)"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MODELSCOPE")}
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert int(out.stdout) >= 86_400
