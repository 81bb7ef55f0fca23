"""Pictures lost, still, empty, doubled or another clip's: planted by encoding real pictures again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.audit_plants import two_scenes
from stack.audit import AuditReport, audit
from stack.audit.checks.deep_scan import scan, to_blocks
from stack.audit.checks.deep_series import Job
from stack.faults import Fault, Place

HEAD, HAND = "observation.images.head", "observation.images.hand"
FPS = 10
LENGTHS = (56, 64, 64, 80)
DEEP = {"video-undecodable", "video-black", "video-one-colour", "video-frozen", "video-repeated"}
DEEP |= {"clip-picture-wrong"}
Pictures = list[np.ndarray]


def read(file: Path) -> Pictures:
    """Every picture, straight from PyAV."""
    with av.open(str(file)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.fixture(scope="session")
def scene(deliveries: Path) -> Pictures:
    """Pictures of a moving robot, (120, 160, 3): a real recording's where there is one, else the demo's.

    Where the robot rests, the pictures do stand still; these are left out, for the rows of the good dataset
    move all the time.
    """
    folder = os.environ.get("STACK_REAL_DATASETS", Path(__file__).parents[3] / "shared/datasets")
    files = sorted(Path(folder).glob("cr5_tcp_v21/videos/*/*/*.mp4"))
    files = files or sorted(deliveries.glob("demo_task/videos/*/*top_head/*.mp4"))
    kept: Pictures = []
    for file in files:
        with av.open(str(file)) as container:
            decoded = [f.reformat(160, 120, interpolation="AREA") for f in container.decode(video=0)]
        for small in (picture.to_ndarray(format="rgb24") for picture in decoded):
            if not kept or np.abs(small.astype(int) - kept[-1]).max() > 40:
                kept.append(small)
        if len(kept) >= sum(LENGTHS):
            return kept[: sum(LENGTHS)]
    raise AssertionError(f"only {len(kept)} pictures in motion")


@pytest.fixture
def take(scene: Pictures) -> Callable[[int], Pictures]:
    """An episode's own part of the scene."""

    def of(episode: int) -> Pictures:
        first = sum(LENGTHS[:episode])
        return scene[first : first + LENGTHS[episode]]

    return of


Encode = Callable[..., None]


def audited(root: Path) -> list[Fault]:
    return [fault for fault in audit(root, deep=True).faults if fault.code in DEEP]


def one(faults: list[Fault], code: str) -> Fault:
    assert {fault.code for fault in faults} == {code}, faults
    (fault,) = faults
    return fault


def hand(root: Path, episode: int) -> Path:
    return root / f"videos/chunk-000/{HAND}/episode_{episode:06d}.mp4"


@pytest.fixture
def v21(copy_good: Callable[[str], Path], encode_video: Encode, take: Callable[[int], Pictures]) -> Path:
    """The good dataset with real pictures under its hand camera."""
    root = copy_good("v2.1")
    for episode in range(len(LENGTHS)):
        encode_video(hand(root, episode), take(episode), gop=12)
    return root


def test_real_pictures_are_not_accused(v21: Path) -> None:
    assert audited(v21) == []


def test_a_frozen_run_that_was_encoded_again_is_found(
    v21: Path, encode_video: Encode, take: Callable[[int], Pictures]
) -> None:
    pictures = take(1)
    stuck = [*pictures[:20], *[pictures[20]] * 30, *pictures[50:]]
    encode_video(hand(v21, 1), stuck, gop=12)
    decoded = read(hand(v21, 1))
    # The encoder leaves them near-identical only: this is what a comparison of bytes would miss.
    assert any(not np.array_equal(decoded[20], other) for other in decoded[21:50])
    fault = one(audited(v21), "video-frozen")
    assert (fault.where.file, fault.where.episode) == (hand(v21, 1).relative_to(v21).as_posix(), 1)
    # The encoder may take a picture to settle.
    assert fault.where.feature == HAND and fault.where.frame in (21, 22) and fault.count in (28, 29)


def test_a_still_picture_of_a_still_robot_is_no_fault(
    v21: Path, encode_video: Encode, take: Callable[[int], Pictures]
) -> None:
    pictures = take(1)
    encode_video(hand(v21, 1), [*pictures[:20], *[pictures[20]] * 30, *pictures[50:]], gop=12)
    file = v21 / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(file)
    column = table.column_names.index("observation.state")
    states = table.column(column).to_pylist()
    states[20:50] = [states[20]] * 30
    field = table.schema.field(column)
    pq.write_table(table.set_column(column, field, [pa.array(states, field.type)]), file)
    assert audited(v21) == []


def test_slow_motion_is_not_frozen(v21: Path, encode_video: Encode) -> None:
    """Half a level a picture: each is near its neighbour, the last one far from the first."""
    step = np.linspace(0, 1, 160)[None, :, None]
    pictures = [np.rint(60 + 80 * step + 0.5 * n).astype(np.uint8) for n in range(64)]
    encode_video(hand(v21, 1), [np.repeat(np.repeat(p, 120, 0), 3, 2) for p in pictures], gop=12)
    runs = scan(Job(hand(v21, 1), "x", FPS, ((1, 0, 64),))).still
    assert all(run.stop - run.start <= 8 for run in runs)


@pytest.mark.parametrize(
    ("colour", "code"), [((8, 8, 8), "video-black"), ((20, 60, 200), "video-one-colour")]
)
def test_empty_pictures_are_found(
    colour: tuple[int, int, int], code: str, v21: Path, encode_video: Encode, take: Callable[[int], Pictures]
) -> None:
    pictures = take(2)
    empty = np.full_like(pictures[0], colour)
    encode_video(hand(v21, 2), [*pictures[:30], *[empty] * 4, *pictures[34:]], gop=6)
    fault = one(audited(v21), code)
    assert (fault.where.episode, fault.where.frame, fault.count) == (2, 30, 4)


def test_one_dark_flicker_is_no_fault(
    v21: Path, encode_video: Encode, take: Callable[[int], Pictures]
) -> None:
    pictures = take(2)
    dark = [np.zeros_like(pictures[0])] * 2
    encode_video(hand(v21, 2), [*pictures[:30], *dark, *pictures[32:]], gop=6)
    assert audited(v21) == []


def test_a_run_that_comes_twice_in_an_episode_is_found(
    v21: Path, encode_video: Encode, take: Callable[[int], Pictures]
) -> None:
    pictures = take(3)
    encode_video(hand(v21, 3), [*pictures[:45], *pictures[10:30], *pictures[65:]], gop=12)
    faults = [f for f in audited(v21) if f.code == "video-repeated"]
    (fault,) = faults
    assert fault.where.episode == 3 and fault.where.feature == HAND
    # The encoder blurs where the run begins and ends by a picture or two.
    assert 45 <= fault.where.frame <= 47 and 17 <= fault.count <= 20
    assert fault.data["lag_frames"] == 35


def test_another_episodes_file_under_an_episodes_name_is_found(v21: Path) -> None:
    """Cut to its length, as an exporter does that takes the wrong buffer."""
    shutil.copyfile(hand(v21, 1), hand(v21, 2))
    fault = one(audited(v21), "video-repeated")
    assert fault.where == Place(hand(v21, 2).relative_to(v21).as_posix(), 2, 0, HAND)
    assert (fault.count, fault.data["of"]) == (64, [HAND, 1, 0])
    assert [place.episode for place in fault.places] == [2, 1]  # both fit their rows: look at both


def test_the_copy_is_told_from_the_original_by_its_length(v21: Path) -> None:
    """The check meets episode 1 first; only episode 0's video is not as long as its rows."""
    shutil.copyfile(hand(v21, 1), hand(v21, 0))
    report = audit(v21, deep=True)
    (fault,) = report.of("video-repeated")
    assert [place.episode for place in fault.places] == [0] and fault.data["of"][:2] == [HAND, 1]
    assert [d.choice for d in report.decisions] == ["drop", "use", "use", "use"]


def test_one_camera_under_two_names_is_found(v21: Path) -> None:
    for episode in range(len(LENGTHS)):
        name = hand(v21, episode).name
        shutil.copyfile(hand(v21, episode), v21 / f"videos/chunk-000/{HEAD}/{name}")
    found = [f for f in audited(v21) if f.code == "video-repeated"]
    assert sum(f.count for f in found) == sum(LENGTHS)
    assert {f.data["of"][0] for f in found} | {f.where.feature for f in found} == {HEAD, HAND}


def test_each_undecodable_picture_is_named(
    v21: Path, encode_video: Encode, take: Callable[[int], Pictures]
) -> None:
    """A picture's packet is overwritten; key frames every 8 let the decoder go on after it."""
    file = hand(v21, 1)
    encode_video(file, take(1), gop=8)
    with av.open(str(file)) as container:
        packets = [(p.pos, p.size, p.is_keyframe) for p in container.demux(video=0) if p.size]
    position, size, is_key = packets[24]
    assert is_key
    content = bytearray(file.read_bytes())
    content[position : position + size] = bytes(size)
    file.write_bytes(content)
    with av.open(str(file)) as container:  # what a decoder that goes on gives
        shown, stream = set(), container.streams.video[0]
        for packet in container.demux(stream):
            with suppress(av.FFmpegError):
                good = [f for f in stream.decode(packet) if not f.is_corrupt]
                shown |= {round(float(f.pts * stream.time_base) * FPS) for f in good}
    lost = sorted(set(range(64)) - shown)
    assert lost and lost[0] == 24 and len(lost) <= 8
    fault = one(audited(v21), "video-undecodable")
    assert fault.where == Place(file.relative_to(v21).as_posix(), 1, 24, HAND)
    assert fault.count == len(lost)


@pytest.fixture
def v30(copy_good: Callable[[str], Path]) -> Path:
    return copy_good("v3.0")


def joined(root: Path) -> Path:
    return root / f"videos/{HAND}/chunk-000/file-000.mp4"


def scenes(scene: Pictures) -> list[Pictures]:
    """Four takes, each turned or brightened its own way: between takes somebody moves the camera."""
    turned = [lambda p: p, lambda p: p[:, ::-1], lambda p: p[::-1], lambda p: np.clip(p + 40.0, 0, 255)]
    first = [sum(LENGTHS[:e]) for e in range(4)]
    return [
        [np.ascontiguousarray(turned[e](p)).astype(np.uint8) for p in scene[first[e] : first[e] + LENGTHS[e]]]
        for e in range(4)
    ]


def test_right_borders_are_not_accused(v30: Path, scene: Pictures, encode_video: Encode) -> None:
    encode_video(joined(v30), [p for take in scenes(scene) for p in take], gop=5)
    assert audited(v30) == []


@pytest.mark.parametrize("off", [1, -1, 2])
def test_borders_off_by_a_frame_are_found(off: int, v30: Path, scene: Pictures, encode_video: Encode) -> None:
    """Episode 0 has `off` pictures more than rows, the last one as many fewer: every count is right."""
    takes = scenes(scene)
    first = [takes[0][0]] * off + takes[0] if off > 0 else takes[0][-off:]
    last = takes[3][:-off] if off > 0 else takes[3] + [takes[3][-1]] * -off
    encode_video(joined(v30), [p for take in (first, takes[1], takes[2], last) for p in take], gop=5)
    fault = one(audited(v30), "clip-picture-wrong")
    # Beside a hand in full motion a change of scene may drown: two of the three are enough.
    assert fault.severity == "error" and fault.count >= 2
    assert {(p.episode, p.frame, p.feature) for p in fault.places} <= {(e, 0, HAND) for e in (1, 2, 3)}
    assert fault.data["off_frames"] == off


def test_a_single_wrong_border_is_a_warning(v30: Path, scene: Pictures, encode_video: Encode) -> None:
    takes = scenes(scene)
    pictures = [*takes[0], *takes[1], takes[1][-1], *takes[2][:-1], *takes[3]]
    encode_video(joined(v30), pictures, gop=5)
    fault = one(audited(v30), "clip-picture-wrong")
    assert (fault.severity, fault.where.episode, fault.data["off_frames"]) == ("warning", 2, 1)


def test_takes_that_run_into_each_other_are_not_accused(
    v30: Path, scene: Pictures, encode_video: Encode
) -> None:
    """One long recording cut into episodes has no change of scene anywhere."""
    encode_video(joined(v30), scene[: sum(LENGTHS)], gop=5)
    assert audited(v30) == []


def test_what_prepare_writes_is_clean(deliveries: Path, checkout: Path, tmp_path: Path) -> None:
    from stack.manifests import load_dataset_manifest
    from stack.prepare import prepare

    text = (checkout / "manifests/datasets/demo.yaml").read_text()
    (tmp_path / "demo.yaml").write_text(text.replace("../../work/demo/deliveries", str(deliveries)))
    prepare(load_dataset_manifest(tmp_path / "demo.yaml", allow_outside=True), out=tmp_path / "out")
    assert audited(tmp_path / "out") == []


def test_real_recordings_are_decoded_whole_and_not_accused(real_datasets: Path) -> None:
    root = real_datasets / "gr00t_picknplace_v20"
    if not root.is_dir():
        pytest.skip("gr00t_picknplace_v20 is not there")
    said: list[str] = []
    report: AuditReport = audit(root, deep=True, log=said.append)
    assert not [f for f in report.faults if f.code in DEEP]
    assert any("2096 of 2096 pictures decoded" in line and "a second" in line for line in said)


def test_a_scan_breaks_off_where_it_is_told_to(v21: Path, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    job = Job(hand(v21, 3), "x", FPS, ((3, 0, 80),), stop)
    assert scan(job).decoded == 80
    stop.touch()
    assert scan(job).decoded == 0


def test_time_that_is_up_ends_the_decoding(real_datasets: Path) -> None:
    root = real_datasets / "cr5_tcp_v21"
    if not root.is_dir():
        pytest.skip("cr5_tcp_v21 is not there")
    started = time.monotonic()
    report = audit(root, deep=True, max_seconds=3)
    assert time.monotonic() - started < 3 + 15
    assert report.of("unchecked-time-up") and not report.ok
    assert {item.name for item in report.not_run} >= {"pictures", "frozen-pictures", "clip-borders"}


def test_blocks_are_means(scene: Pictures) -> None:
    plane = scene[0][:, :, 0]
    blocks = to_blocks(plane, 10)
    assert blocks.shape == (10, 10)
    assert blocks[1, 2] == pytest.approx(plane[12:24, 32:48].mean())
    assert to_blocks(plane[:7, :30], 32).shape == (1, 3)


def test_cameras_that_stay_in_their_places_are_not_accused(copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    two_scenes()(root)
    assert not audit(root, deep=True).of("cameras-swapped")
    two_scenes(swapped=0)(root)
    (fault,) = audit(root, deep=True).of("cameras-swapped")
    assert {(place.feature, place.episode) for place in fault.places} == {(HEAD, 0), (HAND, 0)}
