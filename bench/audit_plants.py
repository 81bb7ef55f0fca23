"""Ways to plant each fault of the audit in the good dataset of `bench.audit_good`, and where it then is."""

from __future__ import annotations

import hashlib
import io
import json
import math
import pickle
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.audit_good import CAMERAS, LENGTHS, WIDTH, encode, pictures_into_rows, pictures_of, to_png
from stack.faults import Place

HEAD, HAND = "observation.images.head", "observation.images.hand"
STATE = "observation.state"
INFO, EPISODES, TASKS = "meta/info.json", "meta/episodes.jsonl", "meta/tasks.jsonl"
EPISODES_STATS, STATS = "meta/episodes_stats.jsonl", "meta/stats.json"
EPISODE_TABLE, TASK_TABLE = "meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet"
Damage = Callable[[Path], None]


def data(episode: int) -> str:
    return f"data/chunk-000/episode_{episode:06d}.parquet"


def video(camera: str, episode: int) -> str:
    return f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4"


def in_json(file: str, change: Callable[[Any], None]) -> Damage:
    def damage(root: Path) -> None:
        value = json.loads((root / file).read_text())
        change(value)
        (root / file).write_text(json.dumps(value))

    return damage


def in_info(**values: Any) -> Damage:
    return in_json(INFO, lambda info: info.update(values))


def without(key: str) -> Damage:
    return in_json(INFO, lambda info: info.pop(key))


def in_feature(name: str, **values: Any) -> Damage:
    return in_json(INFO, lambda info: info["features"][name].update(values))


def in_text(file: str, old: str, new: str) -> Damage:
    def damage(root: Path) -> None:
        text = (root / file).read_text()
        assert old in text
        (root / file).write_text(text.replace(old, new, 1))

    return damage


def in_lines(file: str, change: Callable[[list[Any]], None]) -> Damage:
    def damage(root: Path) -> None:
        lines = [json.loads(line) for line in (root / file).read_text().splitlines()]
        change(lines)
        (root / file).write_text("".join(json.dumps(line) + "\n" for line in lines))

    return damage


def in_stats(episode: int, feature: str, change: Callable[[dict[str, Any]], None]) -> Damage:
    return in_lines(EPISODES_STATS, lambda lines: change(lines[episode]["stats"][feature]))


def in_table(file: str, change: Callable[[pa.Table], pa.Table]) -> Damage:
    def damage(root: Path) -> None:
        pq.write_table(change(pq.read_table(root / file)), root / file)

    return damage


def in_column(file: str, name: str, change: Callable[[list[Any]], Any], type: Any = None) -> Damage:
    """`change` edits the column's values in place, or returns others."""

    def of(table: pa.Table) -> pa.Table:
        values = table.column(name).to_pylist()
        changed = change(values)
        kept = type or table.schema.field(name).type
        array = pa.array(values if changed is None else changed, kept)
        return table.set_column(table.column_names.index(name), name, array)

    return in_table(file, of)


def in_channel(name: str, channel: int, change: Callable[[int, int, float], float]) -> Damage:
    """`change` maps (episode, frame, value) in every row of the v2.1 dataset."""

    def edit(episode: int) -> Callable[[list[Any]], None]:
        def of(values: list[Any]) -> None:
            for frame, row in enumerate(values):
                row[channel] = change(episode, frame, row[channel])

        return of

    return all_of(*(in_column(data(e), name, edit(e)) for e in range(len(LENGTHS))))


def all_of(*damages: Damage) -> Damage:
    def damage(root: Path) -> None:
        for one in damages:
            one(root)

    return damage


def cut(file: str, keep_frac: float) -> Damage:
    def damage(root: Path) -> None:
        content = (root / file).read_bytes()
        (root / file).write_bytes(content[: int(len(content) * keep_frac)])

    return damage


def write(file: str, content: bytes) -> Damage:
    def damage(root: Path) -> None:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(content)

    return damage


def copied(file: str, to: str) -> Damage:
    def damage(root: Path) -> None:
        shutil.copy(root / file, root / to)

    return damage


def remove(*files: str) -> Damage:
    def damage(root: Path) -> None:
        for file in files:
            shutil.rmtree(root / file) if (root / file).is_dir() else (root / file).unlink()

    return damage


def encoded(
    episode: int, *, frames: int | None = None, still: bool = False, black: int = 0, **how: Any
) -> Damage:
    """The hand camera's video of an episode, encoded again in another way."""
    size = how.pop("size", (48, 32))

    def damage(root: Path) -> None:
        pictures = []
        for frame in range(frames or LENGTHS[episode]):
            image = np.full((size[1], size[0], 3), 120, np.uint8)
            left = 0 if still and frame >= 20 else frame % (size[0] - 8)
            image[8:16, left : left + 8] = 255
            pictures.append(image if frame >= black else np.zeros_like(image))
        encode(root / video(HAND, episode), pictures, **how)

    return damage


def two_scenes(*, swapped: int | None = None) -> Damage:
    """Both cameras show scenes that cannot be mistaken, each the other's in episode `swapped`."""

    def damage(root: Path) -> None:
        for episode, length in enumerate(LENGTHS):
            for camera, (width, height) in CAMERAS.items():
                pictures = []
                for frame in range(length):
                    image = np.full((height, width, 3), 100 + 2 * episode, np.uint8)
                    if (camera == HAND) != (episode == swapped):
                        image[:, : width // 2] = 200
                    left = frame * 3 % (width - 8)
                    image[8:16, left : left + 8] = (250, 250 - 2 * frame, 40)
                    pictures.append(image)
                encode(root / video(camera, episode), pictures)

    return damage


def old_copy(root: Path) -> None:
    root.with_name(f"{root.name}_old").mkdir(exist_ok=True)


def in_steps(root: Path) -> None:
    """Each row of action is a chunk of five actions."""
    for episode in range(len(LENGTHS)):
        kind = pa.list_(pa.list_(pa.float32()))
        in_column(data(episode), "action", lambda v: [[row] * 5 for row in v], kind)(root)
    in_feature("action", shape=[5, WIDTH], names=None)(root)


def appended(file: str, text: str) -> Damage:
    def damage(root: Path) -> None:
        with (root / file).open("a") as lines:
            lines.write(text)

    return damage


def everywhere(name: str, change: Callable[[pa.Table], pa.Table]) -> Damage:
    return all_of(*(in_table(data(e), change) for e in range(len(LENGTHS))))


def spoilt_pictures(root: Path) -> None:
    """Zeros over the coded pictures in the middle of a video; its index stays whole."""
    file = root / video(HAND, 1)
    content = bytearray(file.read_bytes())
    start = content.index(b"mdat") + 4
    length = int.from_bytes(content[start - 8 : start - 4], "big") - 8
    for at in range(start + length // 3, start + 2 * length // 3):
        content[at] = 0
    file.write_bytes(content)


def pictures_left(root: Path) -> None:
    folder = root / f"images/{HAND}/episode_000001"
    folder.mkdir(parents=True)
    for frame in range(LENGTHS[1] + 6):
        (folder / f"frame_{frame:06d}.png").write_bytes(b"png")


def nothing_recorded(root: Path) -> None:
    remove("data", "videos")(root)
    (root / EPISODES).write_text("")
    (root / EPISODES_STATS).write_text("")


def doubled_action(table: pa.Table) -> pa.Table:
    return table.append_column("action", table.column("action"))


def turned(*episodes: int, matrix: tuple[int, int, int, int] = (0, 1, -1, 0)) -> Damage:
    """The track header of the hand camera's videos asks for a turn, by default a quarter to the right."""

    def damage(root: Path) -> None:
        for episode in episodes:
            file = root / video(HAND, episode)
            content = bytearray(file.read_bytes())
            at = content.index(b"tkhd") + 4 + 40
            a, b, c, d = (part << 16 for part in matrix)
            content[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
            file.write_bytes(content)

    return damage


def with_second_track(episode: int) -> Damage:
    """The other camera's pictures as a second video track of the hand camera's file."""

    def damage(root: Path) -> None:
        file, other = root / video(HAND, episode), root / video(HEAD, episode)
        both = file.with_suffix(".both.mp4")
        with av.open(str(file)) as first, av.open(str(other)) as second, av.open(str(both), "w") as out:
            streams = [out.add_stream_from_template(source.streams.video[0]) for source in (first, second)]
            for source, stream in zip((first, second), streams, strict=True):
                for packet in source.demux(source.streams.video[0]):
                    if packet.size:
                        packet.stream = stream
                        out.mux(packet)
        both.replace(file)

    return damage


def renamed_feature(info: dict[str, Any]) -> None:
    info["features"]["left/action"] = dict(info["features"]["action"])


def beyond_float32(root: Path) -> None:
    """One value of float64 that float32 turns into infinity."""
    in_column(data(2), "action", one_element(20, 1, 1e300), pa.list_(pa.float64()))(root)


def over_two_files(root: Path) -> None:
    """The last rows of episode 1 in the next file."""
    one, two = (root / f"data/chunk-000/file-{n:03d}.parquet" for n in range(2))
    rows, more = pq.read_table(one), pq.read_table(two)
    pq.write_table(rows.slice(0, 100), one)
    pq.write_table(pa.concat_tables([rows.slice(100), more]), two)


def in_matroska(episode: int) -> Damage:
    """The same packets in another container, under the old name."""

    def damage(root: Path) -> None:
        file = root / video(HAND, episode)
        other = file.with_suffix(".mkv")
        with av.open(str(file)) as source, av.open(str(other), "w") as out:
            stream = out.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(source.streams.video[0]):
                if packet.size:
                    packet.stream = stream
                    out.mux(packet)
        other.replace(file)

    return damage


def two_sizes(episode: int) -> Damage:
    """From frame 32 on the hand camera's pictures are twice as large; the packets stand in one MP4."""

    def damage(root: Path) -> None:
        pictures = pictures_of(episode, HAND)
        large = [np.kron(image, np.ones((2, 2, 1), np.uint8)) for image in pictures[32:]]
        raw = io.BytesIO()
        for part in (pictures[:32], large):
            with av.open(raw, "w", format="h264") as out:
                stream = out.add_stream("libx264", rate=10)
                stream.height, stream.width = part[0].shape[:2]
                stream.pix_fmt, stream.options = "yuv420p", {"bf": "0", "g": "5", "crf": "20"}
                for image in part:
                    out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
                out.mux(stream.encode(None))
        raw.seek(0)
        with av.open(raw, format="h264") as source, av.open(str(root / video(HAND, episode)), "w") as out:
            stream = out.add_stream_from_template(source.streams.video[0])
            packets = (packet for packet in source.demux(source.streams.video[0]) if packet.size)
            for number, packet in enumerate(packets):
                packet.pts = packet.dts = number
                packet.time_base, packet.duration, packet.stream = Fraction(1, 10), 1, stream
                out.mux(packet)

    return damage


def same_rows(root: Path) -> None:
    other = pq.read_table(root / data(1))
    in_column(data(2), STATE, lambda _: other.column(STATE).to_pylist())(root)
    in_column(data(2), "action", lambda _: other.column("action").to_pylist())(root)


def taken_again(
    of: int, into: int, *, first: int = 0, decimals: int = 9, other_scene: bool = False
) -> Damage:
    """An episode's rows and pictures from frame `first` on, rounded and encoded again, as another episode."""

    def damage(root: Path) -> None:
        count = LENGTHS[into]
        other = pq.read_table(root / data(of)).slice(first, count)
        for name in (STATE, "action"):
            rows = np.round(np.array(other.column(name).to_pylist()), decimals).tolist()
            in_column(data(into), name, lambda _, rows=rows: rows)(root)
        for camera in CAMERAS if not other_scene else ():
            with av.open(str(root / video(camera, of))) as container:
                shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
            encode(root / video(camera, into), shown[first : first + count], crf=30)

    return damage


def read_slowly(episode: int) -> Damage:
    """State and action come at half the rate: each row twice."""

    def twice(values: list[Any]) -> list[Any]:
        return [values[frame - frame % 2] for frame in range(len(values))]

    return all_of(*(in_column(data(episode), name, twice) for name in (STATE, "action")))


def in_degrees(values: list[Any]) -> list[Any]:
    return [[math.degrees(value) for value in row] for row in values]


def state_from_action(root: Path) -> None:
    for episode in range(len(LENGTHS)):
        table = pq.read_table(root / data(episode))
        at = table.column_names.index(STATE)
        pq.write_table(table.set_column(at, STATE, table.column("action")), root / data(episode))


def exchanged_clips(camera: str) -> Damage:
    """Episodes 1 and 2, which are equally long, each have the other's place in the joined video."""

    def exchange(values: list[Any]) -> None:
        values[1], values[2] = values[2], values[1]

    names = (f"videos/{camera}/{end}_timestamp" for end in ("from", "to"))
    return all_of(*(in_column(EPISODE_TABLE, name, exchange) for name in names))


def with_extra(root: Path) -> None:
    in_json(
        INFO,
        lambda info: info["features"].update(
            {"action.raw": {"dtype": "float32", "shape": [1], "names": None}}
        ),
    )(root)
    everywhere("action.raw", lambda t: t.append_column("action.raw", pa.array([0.5] * len(t), pa.float32())))(
        root
    )


def linked_outside(file: str) -> Damage:
    def damage(root: Path) -> None:
        outside = root.parent / "outside.bin"
        (root / file).rename(outside)
        (root / file).symlink_to(outside)

    return damage


def averaged_quantiles(root: Path) -> None:
    """As most tools make them: numpy's quantiles of each episode, averaged by rows."""
    states, lengths = [], []
    for file in sorted((root / "data").rglob("*.parquet")):
        table = pq.read_table(file)
        episodes = np.array(table.column("episode_index").to_pylist())
        state = np.array(table.column(STATE).to_pylist(), np.float64)
        state += episodes[:, None]  # episodes that differ, so that the average is far from right
        moved = pa.array(state.astype(np.float32).tolist(), table.schema.field(STATE).type)
        pq.write_table(table.set_column(table.column_names.index(STATE), STATE, moved), file)
        for episode in np.unique(episodes):
            states.append(state[episodes == episode].astype(np.float32).astype(np.float64))
            lengths.append(len(states[-1]))
    rows = np.concatenate(states)
    stats = json.loads((root / STATS).read_text())
    quantiles = {
        f"q{q:02}": np.average([np.quantile(s, q / 100, axis=0) for s in states], axis=0, weights=lengths)
        for q in (1, 10, 50, 90, 99)
    }
    stats[STATE] = {
        "min": rows.min(0).tolist(),
        "max": rows.max(0).tolist(),
        "mean": rows.mean(0).tolist(),
        "std": rows.std(0).tolist(),
        "count": [len(rows)],
        **{name: value.tolist() for name, value in quantiles.items()},
    }
    (root / STATS).write_text(json.dumps(stats))


def shrunk_gripper(root: Path) -> None:
    """The left one in metres: a twentieth of the right one's numbers."""
    for file in sorted((root / "data").rglob("*.parquet")):
        rows = [[*row[:4], row[4] / 20, row[5]] for row in pq.read_table(file).column(STATE).to_pylist()]
        in_column(file.relative_to(root).as_posix(), STATE, lambda _, rows=rows: rows)(root)


def foreign_stats(root: Path) -> None:
    """Mean, min and max of another robot, in every feature that moves."""

    def change(stats: dict[str, Any]) -> None:
        for name in (STATE, "action"):
            for stat in ("min", "max", "mean"):
                stats[name][stat] = [v + 3.0 for v in stats[name][stat]]

    in_json(STATS, change)(root)


def swapped_stats(lines: list[Any]) -> None:
    lines[1]["stats"], lines[3]["stats"] = lines[3]["stats"], lines[1]["stats"]


def with_provenance(then: Damage) -> Damage:
    """Hashes of all files as they are, then the damage."""

    def damage(root: Path) -> None:
        files = {
            path.relative_to(root).as_posix(): {
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "size": path.stat().st_size,
            }
            for path in root.rglob("*")
            if path.is_file()
        }
        (root / "meta/provenance.json").write_text(json.dumps({"files": files}))
        then(root)

    return damage


def one_bit(file: str, at_frac: float) -> Damage:
    def damage(root: Path) -> None:
        content = bytearray((root / file).read_bytes())
        content[int(len(content) * at_frac)] ^= 1
        (root / file).write_bytes(content)

    return damage


def put(position: int, key: str, value: Any) -> Callable[[list[Any]], None]:
    def change(lines: list[Any]) -> None:
        lines[position][key] = value

    return change


def at(position: int, value: Any) -> Callable[[list[Any]], None]:
    def change(values: list[Any]) -> None:
        values[position] = value(values[position]) if callable(value) else value

    return change


def one_element(frame: int, channel: int, value: Any) -> Callable[[list[Any]], None]:
    def change(values: list[Any]) -> None:
        values[frame][channel] = value

    return change


def in_rows(root: Path) -> None:
    pictures_into_rows(root, HAND)


def in_picture(file: str, rows: int | range, change: Callable[[bytes], bytes | None]) -> Damage:
    """The hand camera's pictures in the rows, those of `rows` changed; None leaves no picture."""
    wanted = [rows] if isinstance(rows, int) else list(rows)

    def of(cells: list[Any]) -> None:
        for row in wanted:
            cells[row] = {**cells[row], "bytes": change(cells[row]["bytes"])}

    return all_of(in_rows, in_column(file, HAND, of))


def spoilt_page(file: str, column: str) -> Damage:
    """Bytes of a column's first page replaced; the footer and the other columns stay whole."""

    def damage(root: Path) -> None:
        group = pq.ParquetFile(root / file).metadata.row_group(0)
        chunks = [group.column(i) for i in range(group.num_columns)]
        (chunk,) = [c for c in chunks if c.path_in_schema == f"{column}.bytes"]
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        content = bytearray((root / file).read_bytes())
        content[start : start + 64] = bytes(64)
        (root / file).write_bytes(content)

    return damage


def decoded(cell: bytes) -> np.ndarray:
    with av.open(io.BytesIO(cell)) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


def to_jpeg(image: np.ndarray) -> bytes:
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.height, encoder.width = image.shape[:2]
    encoder.pix_fmt, encoder.time_base = "yuvj420p", Fraction(1, 25)
    frame = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format="yuvj420p")
    return b"".join(bytes(p) for p in [*encoder.encode(frame), *encoder.encode(None)])


def re_summed(cell: bytes, name: bytes, content: bytes) -> bytes:
    """A PNG with a chunk's content replaced and its checksum right."""
    at = cell.index(name) - 4
    length = int.from_bytes(cell[at : at + 4], "big")
    checksum = zlib.crc32(name + content).to_bytes(4, "big")
    return cell[:at] + len(content).to_bytes(4, "big") + name + content + checksum + cell[at + 12 + length :]


@dataclass(frozen=True)
class Plant:
    """One way to plant a code.

    Attributes:
        where: what one of the found places must say; only the given parts are compared.
        severity: if another than the catalogue's.
        also: codes of severity error that truly follow from the same damage.
    """

    version: str
    damage: Damage
    where: Place
    severity: str | None = None
    also: frozenset[str] = frozenset()
    needs: dict[str, Any] = field(default_factory=dict)
    deep: bool = False
    policy: bool = True


def plant(
    version: str,
    damage: Damage,
    *also: str,
    severity: str | None = None,
    deep: bool = False,
    policy: bool = True,
    needs: dict[str, Any] | None = None,
    **where: Any,
) -> Plant:
    return Plant(version, damage, Place(**where), severity, frozenset(also), needs or {}, deep, policy)


def nothing(root: Path) -> None:
    return None


STALE = "stats-differ"
ROW_FILE = "data/chunk-000/file-000.parquet"
PLANTS: dict[str, list[Plant]] = {
    "info-missing": [plant("v2.1", remove(INFO), file=INFO)],
    "info-not-json": [
        plant("v2.1", write(INFO, b'{"fps": 10,'), file=INFO),
        plant("v2.1", write(INFO, b"[1, 2]"), file=INFO),
    ],
    "info-key-wrong": [
        plant("v2.1", in_info(fps="ten"), file=INFO, feature="fps"),
        plant("v2.1", in_json(INFO, lambda info: info.pop("codebase_version")), feature="codebase_version"),
        plant("v3.0", without("data_path"), file=INFO, feature="data_path"),
        plant("v2.1", in_info(video_path=None), file=INFO, feature="video_path"),
        plant("v2.1", in_info(chunks_size=0), file=INFO, feature="chunks_size"),
        plant("v3.0", without("chunks_size"), feature="chunks_size", severity="warning"),
        plant("v2.1", without("robot_type"), feature="robot_type", severity="warning"),
    ],
    "meta-json-doubtful": [
        plant("v2.1", in_text(INFO, '"fps": 10,', '"fps": 30, "fps": 10,'), file=INFO),
        plant("v3.0", in_text(INFO, '"robot_type": "arm"', '"robot_type": NaN'), file=INFO),
        plant("v2.1", in_text(TASKS, '"task_index": 1', '"task_index": 0, "task_index": 1'), file=TASKS),
    ],
    "version-differs": [plant("v3.0", in_info(codebase_version="v2.1"), file=INFO)],
    "format-needs-conversion": [plant("v2.1", nothing, file=INFO)],
    "totals-lie": [
        plant("v3.0", in_info(total_frames=200), file=INFO, feature="total_frames"),
        plant("v2.1", in_info(total_episodes=5), file=INFO, feature="total_episodes"),
        plant("v2.1", in_info(total_chunks=0), feature="total_chunks", severity="warning"),
        plant(
            "v2.1", in_json(INFO, lambda i: i.pop("total_videos")), feature="total_videos", severity="warning"
        ),
    ],
    "splits-lie": [
        plant("v2.1", in_info(splits={"train": "0:100"}), file=INFO),
        plant("v2.1", in_info(splits={"train": "all"}), file=INFO),
        plant("v2.1", without("splits"), file=INFO, severity="note"),
    ],
    "fps-not-whole": [plant("v2.1", in_info(fps=10.00001), file=INFO)],
    "template-does-not-resolve": [
        plant(
            "v2.1",
            in_info(data_path="data/chunk-{episode_index:03d}/episode_{episode_index:06d}.parquet"),
            feature="data_path",
            episode=1,
        ),
        plant("v2.1", in_info(video_path="videos/{camera}/{episode_index}.mp4"), feature="video_path"),
    ],
    "file-missing": [
        plant("v2.1", remove(data(1)), "totals-lie", file=data(1), episode=1),
        plant(
            "v3.0",
            in_column(EPISODE_TABLE, "data/file_index", at(2, 7)),
            file="data/chunk-000/file-007.parquet",
            episode=2,
        ),
    ],
    "file-empty": [
        plant("v2.1", write(data(1), b""), "unchecked-rows", file=data(1)),
        plant("v2.1", write(TASKS, b""), "task-missing", file=TASKS),
    ],
    "file-truncated": [
        plant("v2.1", cut(data(2), 0.9), "unchecked-rows", file=data(2)),
        plant("v2.1", cut(video(HEAD, 2), 0.6), "unchecked-video", file=video(HEAD, 2)),
        plant("v3.0", cut("meta/tasks.parquet", 0.9), "task-missing", file="meta/tasks.parquet"),
    ],
    "file-unreadable": [
        plant("v2.1", write(data(0), b"no parquet at all"), "unchecked-rows", file=data(0)),
        plant("v2.1", write(video(HAND, 0), b"no video at all" * 99), "unchecked-video", file=video(HAND, 0)),
    ],
    "lfs-pointer": [
        plant(
            "v2.1",
            write(data(3), b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"),
            "unchecked-rows",
            file=data(3),
        ),
        plant(
            "v2.1",
            write(video(HEAD, 3), b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"),
            "unchecked-video",
            file=video(HEAD, 3),
        ),
        plant(
            "v2.1",
            write(EPISODES, b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"),
            "totals-lie",
            file=EPISODES,
        ),
    ],
    "meta-not-json": [
        plant("v2.1", appended(EPISODES_STATS, "{oops\n"), file=EPISODES_STATS),
        plant("v2.1", appended(EPISODES_STATS, '{"a": "\\ud800"}\n'), file=EPISODES_STATS),
        plant("v3.0", write(STATS, b"{"), "stats-missing", "stats-quantiles-missing", file=STATS),
    ],
    "unchecked-rows": [plant("v2.1", cut(data(2), 0.9), "file-truncated", file=data(2))],
    "unchecked-video": [plant("v2.1", cut(video(HEAD, 2), 0.6), "file-truncated", file=video(HEAD, 2))],
    "file-unlisted": [
        plant("v2.1", copied(data(3), data(9)), file=data(9)),
        plant(
            "v3.0",
            copied(f"videos/{HAND}/chunk-000/file-000.mp4", f"videos/{HAND}/chunk-000/file-005.mp4"),
            file=f"videos/{HAND}/chunk-000/file-005.mp4",
        ),
    ],
    "left-over-file": [
        plant("v2.1", write("data/.DS_Store", b"x"), file="data/.DS_Store"),
        plant("v2.1", write("meta/cache.pkl", b"x"), file="meta/cache.pkl"),
        plant("v3.0", write("meta/episodes.jsonl", b"{}\n"), file="meta/episodes.jsonl"),
        plant("v2.1", write("train.py", b"x"), file="train.py"),
    ],
    "old-copy-beside": [plant("v2.1", old_copy, file="../small-v2.1_old")],
    "interrupted-recording": [
        plant("v2.1", pictures_left, episode=1, feature=HAND),
        plant("v2.1", nothing_recorded, "camera-without-files", "totals-lie", "file-empty", file=INFO),
    ],
    "camera-without-files": [plant("v2.1", remove(f"videos/chunk-000/{HAND}"), file=INFO, feature=HAND)],
    "video-missing": [
        plant("v2.1", remove(video(HAND, 2)), file=video(HAND, 2), episode=2, feature=HAND),
        plant("v3.0", remove(f"videos/{HEAD}/chunk-000/file-001.mp4"), episode=3, feature=HEAD),
    ],
    "episode-order": [
        plant("v3.0", in_table(EPISODE_TABLE, lambda t: t.take([1, 0, 2, 3])), episode=1),
        plant("v2.1", in_lines(EPISODES, lambda lines: lines.reverse()), episode=3, severity="warning"),
        plant("v2.1", in_lines(EPISODES, lambda lines: lines.append(lines[0])), "totals-lie", episode=0),
    ],
    "episode-length-differs": [
        plant("v2.1", in_lines(EPISODES, put(1, "length", 65)), file=EPISODES, episode=1),
        plant("v3.0", in_column(EPISODE_TABLE, "length", at(2, 60)), episode=2),
    ],
    "episode-unlisted": [
        plant(
            "v3.0",
            in_table(EPISODE_TABLE, lambda t: t.slice(0, 3)),
            "totals-lie",
            "video-length-differs",
            episode=3,
        ),
    ],
    "episode-without-rows": [
        plant(
            "v3.0",
            in_table("data/chunk-000/file-001.parquet", lambda t: t.slice(0, LENGTHS[2])),
            "totals-lie",
            STALE,
            "stats-quantiles-wrong",
            episode=3,
        ),
        plant(
            "v2.1",
            in_table(data(1), lambda t: t.slice(0, 0)),
            "totals-lie",
            "index-gaps",
            "video-length-differs",
            episode=1,
        ),
    ],
    "rows-range-wrong": [
        plant("v3.0", in_column(EPISODE_TABLE, "dataset_from_index", at(2, lambda v: v + 1)), episode=2),
        plant("v3.0", in_column(EPISODE_TABLE, "dataset_to_index", at(0, lambda v: v - 1)), episode=0),
    ],
    "data-file-index-wrong": [
        plant("v3.0", in_column(EPISODE_TABLE, "data/file_index", at(2, 0)), episode=2),
        plant(
            "v3.0", in_column(EPISODE_TABLE, "data/file_index", at(1, None)), file=EPISODE_TABLE, episode=1
        ),
    ],
    "episode-over-files": [plant("v3.0", over_two_files, file=EPISODE_TABLE, episode=1)],
    "column-missing": [
        plant(
            "v2.1", in_table(data(1), lambda t: t.drop_columns(["action"])), file=data(1), feature="action"
        ),
    ],
    "column-unknown": [
        plant(
            "v2.1",
            in_table(data(0), lambda t: t.append_column("speed", pa.array([1.0] * len(t)))),
            file=data(0),
            feature="speed",
        ),
    ],
    "column-doubled": [plant("v2.1", in_table(data(1), doubled_action), file=data(1), feature="action")],
    "index-column-missing": [
        plant(
            "v2.1",
            everywhere("frame_index", lambda t: t.drop_columns(["frame_index"])),
            feature="frame_index",
            severity="warning",
        ),
        plant(
            "v3.0",
            in_table("data/chunk-000/file-001.parquet", lambda t: t.drop_columns(["index"])),
            feature="index",
        ),
        plant("v2.1", in_table(data(2), lambda t: t.drop_columns(["task_index"])), feature="task_index"),
    ],
    "list-typed-scalar": [
        plant(
            "v2.1",
            in_column(data(0), "task_index", lambda v: [[x] for x in v], pa.list_(pa.int64())),
            file=data(0),
            feature="task_index",
        ),
    ],
    "dtype-differs": [
        plant(
            "v2.1",
            in_column(
                data(1), "action", lambda v: [[str(x) for x in row] for row in v], pa.list_(pa.string())
            ),
            file=data(1),
            feature="action",
        ),
        plant(
            "v2.1",
            in_column(data(1), "action", lambda v: v, pa.list_(pa.float64())),
            file=data(1),
            feature="action",
            severity="note",
        ),
    ],
    "width-differs": [
        plant(
            "v2.1",
            in_column(data(1), "action", lambda v: [row[:5] for row in v], pa.list_(pa.float32())),
            file=data(1),
            episode=1,
            feature="action",
        ),
        plant(
            "v2.1",
            in_feature(STATE, shape=[7], names=[str(i) for i in range(7)]),
            "stats-shape-mismatch",
            feature=STATE,
        ),
        plant(
            "v2.1",
            in_column(data(2), "action", at(9, [1.0]), pa.list_(pa.float32())),
            episode=2,
            frame=9,
            feature="action",
        ),
    ],
    "names-do-not-fit": [
        plant("v2.1", in_feature(STATE, names=["a", "b"]), feature=STATE),
        plant(
            "v2.1",
            in_feature("action", names=[["a", "b", "c", "d", "e", "f"]]),
            feature="action",
            severity="note",
        ),
        plant("v3.0", in_feature(HAND, names=None), feature=HAND, severity="error"),
    ],
    "camera-axes-differ": [
        plant("v3.0", in_feature(HAND, shape=[3, 32, 48]), file=INFO, feature=HAND),
        plant("v3.0", in_feature(HEAD, names=["channels", "height", "width"]), file=INFO, feature=HEAD),
        plant(
            "v3.0",
            in_feature(HAND, shape=[3, 32, 48], names=["channels", "height", "width"]),
            "stats-shape-mismatch",
            feature=HAND,
            severity="note",
        ),
    ],
    "feature-name-unfit": [
        plant("v2.1", in_json(INFO, renamed_feature), "column-missing", feature="left/action"),
    ],
    "feature-fps-entry": [plant("v2.1", in_feature("action", fps=10), feature="action")],
    "extra-policy-feature": [plant("v2.1", with_extra, feature="action.raw")],
    "rows-not-finite": [
        plant(
            "v2.1",
            in_column(data(2), STATE, one_element(5, 3, float("nan"))),
            file=data(2),
            episode=2,
            frame=5,
            feature=STATE,
            channel="joint_3 [3]",
        ),
        plant(
            "v3.0",
            in_column(
                "data/chunk-000/file-001.parquet", "action", one_element(LENGTHS[2] + 7, 5, float("-inf"))
            ),
            episode=3,
            frame=7,
            feature="action",
            channel="gripper [5]",
        ),
        plant(
            "v2.1",
            in_column(data(1), "action", at(11, None), pa.list_(pa.float32())),
            episode=1,
            frame=11,
            feature="action",
        ),
        plant(
            "v2.1",
            in_column(data(1), "action", one_element(12, 2, None), pa.list_(pa.float32())),
            episode=1,
            frame=12,
            feature="action",
            channel="joint_2 [2]",
        ),
        plant("v2.1", in_column(data(1), "timestamp", at(3, None)), episode=1, frame=3, feature="timestamp"),
        plant("v2.1", beyond_float32, STALE, file=data(2), episode=2, frame=20, feature="action"),
    ],
    "index-gaps": [
        plant(
            "v2.1",
            in_column(data(2), "index", lambda v: [x + 1 for x in v]),
            episode=2,
            frame=0,
            feature="index",
        ),
        plant(
            "v3.0",
            in_column("data/chunk-000/file-000.parquet", "frame_index", at(60, 99)),
            episode=1,
            frame=4,
            feature="frame_index",
        ),
        plant(
            "v2.1",
            in_column(data(1), "episode_index", lambda v: [7] * len(v)),
            episode=1,
            frame=0,
            feature="episode_index",
        ),
        plant(
            "v3.0",
            in_table(
                "data/chunk-000/file-000.parquet",
                lambda t: pa.concat_tables([t.slice(LENGTHS[0]), t.slice(0, LENGTHS[0])]),
            ),
            "rows-range-wrong",
            episode=0,
            feature="episode_index",
        ),
    ],
    "episode-too-short": [plant("v2.1", nothing, needs={"action_horizon": 60}, episode=0)],
    "episode-duplicate": [
        plant("v2.1", same_rows, STALE, episode=2),
        # Rows rounded to three decimals, the pictures encoded again.
        plant("v2.1", taken_again(1, 2, decimals=3), STALE, deep=True, file=data(2), episode=2),
        # The last 64 frames of a take of 80: cut at its beginning.
        plant("v2.1", taken_again(3, 1, first=16, decimals=4), STALE, episode=3),
        plant(
            "v2.1",
            taken_again(1, 2, decimals=3, other_scene=True),
            STALE,
            severity="note",
            deep=True,
            episode=2,
        ),
    ],
    "episode-still": [
        plant("v2.1", in_column(data(2), "action", lambda v: [v[0]] * len(v)), STALE, file=data(2), episode=2)
    ],
    "state-held": [
        plant(
            "v2.1",
            in_column(data(3), STATE, lambda v: [*v[:20], *[v[20]] * (len(v) - 20)]),
            STALE,
            file=data(3),
            episode=3,
            frame=20,
            feature=STATE,
        )
    ],
    "rows-repeated": [plant("v2.1", read_slowly(1), STALE, file=data(1), episode=1)],
    "episode-units-differ": [
        plant("v2.1", in_column(data(2), STATE, in_degrees), STALE, file=data(2), episode=2, feature=STATE)
    ],
    "state-is-action": [plant("v2.1", state_from_action, STALE, file=INFO, feature=STATE)],
    "names-exchanged": [
        plant(
            "v2.1",
            in_feature("action", names=["joint_0", "joint_2", "joint_1", "joint_3", "joint_4", "gripper"]),
            file=INFO,
            feature=STATE,
            channel="joint_1 [1]",
        )
    ],
    "clip-order": [
        plant(
            "v3.0",
            exchanged_clips(HAND),
            file=f"videos/{HAND}/chunk-000/file-000.mp4",
            episode=1,
            feature=HAND,
        )
    ],
    "timestamps-off": [
        plant(
            "v2.1",
            in_column(data(1), "timestamp", lambda v: [x + 0.01 for x in v]),
            STALE,
            file=data(1),
            episode=1,
            feature="timestamp",
        ),
        plant(
            "v3.0",
            in_column("data/chunk-000/file-001.parquet", "timestamp", at(40, lambda v: v + 0.03)),
            episode=2,
            frame=40,
            feature="timestamp",
        ),
    ],
    "timestamps-not-rising": [
        plant(
            "v2.1",
            in_column(data(1), "timestamp", at(6, 0.5)),
            "timestamps-off",
            episode=1,
            frame=6,
            feature="timestamp",
        ),
    ],
    "video-length-differs": [
        plant("v2.1", encoded(1, frames=60), file=video(HAND, 1), episode=1, feature=HAND),
        plant("v2.1", encoded(1, frames=65), file=video(HAND, 1), episode=1, feature=HAND),
    ],
    "video-codec-differs": [
        plant(
            "v2.1",
            in_json(INFO, lambda i: i["features"][HAND]["info"].update({"video.codec": "av1"})),
            feature=HAND,
        ),
        plant(
            "v2.1",
            in_json(INFO, lambda i: i["features"][HAND]["info"].update({"video.pix_fmt": "gray"})),
            feature=HAND,
        ),
    ],
    "video-size-differs": [plant("v2.1", encoded(1, size=(64, 48)), file=video(HAND, 1), feature=HAND)],
    "video-turned": [
        plant("v2.1", turned(0, 1, 2, 3), feature=HAND),
        plant("v2.1", turned(1), file=video(HAND, 1), feature=HAND),
    ],
    "video-open-gop": [
        plant(
            "v2.1",
            encoded(1, gop=8, preset="veryfast", **{"x264-params": "open-gop=1:bframes=3:b-adapt=0"}),
            file=video(HAND, 1),
            feature=HAND,
        ),
        plant("v2.1", encoded(1, gop=8, **{"intra-refresh": "1"}), file=video(HAND, 1), feature=HAND),
    ],
    "video-several-tracks": [
        plant("v2.1", with_second_track(1), file=video(HAND, 1), feature=HAND),
    ],
    "video-not-mp4": [
        plant("v2.1", in_matroska(1), file=video(HAND, 1), feature=HAND),
        plant(
            "v2.1", write(video(HAND, 1), b"ffconcat version 1.0\nfile episode_000002.mp4\n"), feature=HAND
        ),
    ],
    "video-size-changes": [plant("v2.1", two_sizes(1), deep=True, episode=1, frame=32, feature=HAND)],
    "video-copied": [
        plant("v2.1", copied(video(HAND, 1), video(HAND, 2)), file=video(HAND, 2), episode=2, feature=HAND),
    ],
    "video-fps-differs": [plant("v2.1", encoded(2, fps=12), file=video(HAND, 2), feature=HAND)],
    "video-not-constant-rate": [
        plant(
            "v2.1",
            encoded(1, times=[n * 1000 + (300 if n == 33 else 0) for n in range(64)]),
            file=video(HAND, 1),
            frame=33,
            feature=HAND,
        ),
    ],
    "video-start-not-zero": [
        plant(
            "v2.1", encoded(1, times=[n * 1000 + 500 for n in range(64)]), file=video(HAND, 1), feature=HAND
        ),
    ],
    "key-frames-far-apart": [plant("v2.1", encoded(1, gop=250), file=video(HAND, 1), feature=HAND)],
    "clip-times-wrong": [
        plant(
            "v3.0",
            in_column(EPISODE_TABLE, f"videos/{HAND}/to_timestamp", at(1, lambda v: v - 0.1)),
            episode=1,
            feature=HAND,
        ),
        plant(
            "v3.0",
            in_column(EPISODE_TABLE, f"videos/{HEAD}/from_timestamp", at(3, lambda v: v + 0.1)),
            episode=3,
            feature=HEAD,
        ),
    ],
    "clip-times-missing": [
        plant(
            "v3.0",
            in_column(EPISODE_TABLE, f"videos/{HEAD}/file_index", at(2, None)),
            "video-length-differs",
            "clip-times-wrong",
            episode=2,
            feature=HEAD,
        ),
    ],
    "task-missing": [plant("v2.1", remove(TASKS), file=TASKS)],
    "task-empty": [plant("v2.1", in_lines(TASKS, put(1, "task", "  ")), file=TASKS)],
    "task-not-text": [
        plant("v2.1", in_lines(TASKS, put(1, "task", 5)), file=TASKS),
        plant("v2.1", in_lines(TASKS, put(1, "task", [1, "a"])), file=TASKS),
        plant("v3.0", in_table(TASK_TABLE, lambda t: t.replace_schema_metadata(None)), file=TASK_TABLE),
    ],
    "task-order": [plant("v3.0", in_table(TASK_TABLE, lambda t: t.take([1, 0])), file=TASK_TABLE)],
    "task-doubled": [
        plant(
            "v2.1",
            in_lines(TASKS, lambda lines: lines.append({"task_index": 2, "task": lines[0]["task"]})),
            file=TASKS,
        ),
    ],
    "task-out-of-range": [
        plant("v2.1", in_column(data(1), "task_index", at(8, 7)), episode=1, frame=8, feature="task_index"),
    ],
    "task-differs": [plant("v2.1", in_lines(EPISODES, put(2, "tasks", ["something else"])), episode=2)],
    "stats-missing": [
        plant("v3.0", remove(STATS), "stats-quantiles-missing", file=STATS),
        plant("v3.0", in_json(STATS, lambda s: s.pop(HAND)), file=STATS, feature=HAND),
        plant("v2.1", in_lines(EPISODES_STATS, lambda lines: lines.pop(1)), episode=1, severity="warning"),
        plant(
            "v2.1",
            in_lines(EPISODES_STATS, lambda lines: lines[2]["stats"].pop("action")),
            episode=2,
            feature="action",
            severity="warning",
        ),
    ],
    "stats-count-zero": [
        plant("v2.1", in_stats(1, HAND, lambda s: s.update(count=[0])), episode=1, feature=HAND),
    ],
    "stats-nested": [
        plant("v2.1", in_stats(3, STATE, lambda s: s.update(mean=[s["mean"]])), episode=3, feature=STATE),
    ],
    "stats-shape-mismatch": [
        plant(
            "v2.1",
            in_stats(0, "timestamp", lambda s: s.update(count=[s["count"]])),
            episode=0,
            feature="timestamp",
        ),
        plant(
            "v2.1", in_stats(0, "action", lambda s: s.update(std=s["std"][:3])), episode=0, feature="action"
        ),
        plant("v2.1", in_stats(0, HEAD, lambda s: s.update(mean=[0.1, 0.1, 0.1])), episode=0, feature=HEAD),
        plant(
            "v2.1", in_stats(0, "action", lambda s: s.update(std=[[1], [2, 3]])), episode=0, feature="action"
        ),
    ],
    "stats-not-finite": [
        plant(
            "v3.0",
            in_json(STATS, lambda s: s["action"]["std"].__setitem__(2, float("nan"))),
            file=STATS,
            feature="action",
        ),
        plant("v2.1", in_stats(1, STATE, lambda s: s["mean"].__setitem__(0, None)), episode=1, feature=STATE),
    ],
    "stats-differ": [
        plant(
            "v2.1",
            in_stats(1, STATE, lambda s: s["mean"].__setitem__(2, s["mean"][2] + 0.05)),
            episode=1,
            feature=STATE,
        ),
        plant(
            "v3.0",
            in_json(STATS, lambda s: s["action"]["max"].__setitem__(4, 1.5)),
            file=STATS,
            feature="action",
        ),
    ],
    "stats-index-stale": [
        plant(
            "v3.0",
            in_json(STATS, lambda s: s["episode_index"].update(max=[1])),
            file=STATS,
            feature="episode_index",
        ),
    ],
    "stats-quantiles-missing": [
        plant("v3.0", in_json(STATS, lambda s: s[STATE].pop("q01")), file=STATS, severity="error"),
        plant("v2.1", nothing, file=EPISODES_STATS),
    ],
    "stats-quantiles-wrong": [
        plant(
            "v3.0",
            in_json(STATS, lambda s: s["action"].update(q99=[0.8 * v for v in s["action"]["q99"]])),
            file=STATS,
            feature="action",
            severity="error",
        ),
        plant(
            "v3.0",
            in_json(STATS, lambda s: s[STATE].update(q01=[v + 0.1 for v in s[STATE]["q01"]])),
            file=STATS,
            feature=STATE,
            policy=False,
        ),
    ],
    "policy-feature-missing": [
        plant(
            "v2.1", in_json(INFO, lambda i: i["features"].pop("action")), "column-unknown", feature="action"
        ),
    ],
    "vector-not-flat": [plant("v2.1", in_steps, "stats-shape-mismatch", file=INFO, feature="action")],
    "state-too-wide": [plant("v2.1", nothing, needs={"max_state_dim": 4}, feature=STATE)],
    "action-too-wide": [plant("v2.1", nothing, needs={"max_action_dim": 4}, feature="action")],
    "prompt-too-long": [
        plant("v2.1", nothing, needs={"tokenizer_max_length": 60}, feature="task", severity="warning"),
    ],
    "channel-extreme-scale": [
        plant(
            "v2.1",
            in_channel("action", 5, lambda e, f, v: 500.0 if (e, f) == (2, 10) else v),
            STALE,
            episode=2,
            frame=10,
            feature="action",
            channel="gripper [5]",
        ),
        plant(
            "v2.1",
            in_channel("action", 1, lambda e, f, v: -20.0 if (e, f) == (1, 4) else v),
            STALE,
            episode=1,
            frame=4,
            feature="action",
            channel="joint_1 [1]",
            severity="warning",
        ),
        plant(
            "v2.1",
            in_channel(STATE, 0, lambda e, f, v: 3000.0 if (e, f) == (0, 2) else v),
            STALE,
            episode=0,
            frame=2,
            feature=STATE,
            channel="joint_0 [0]",
            severity="warning",
        ),
    ],
    "channel-constant": [
        plant(
            "v2.1", in_channel(STATE, 2, lambda e, f, v: 0.25), STALE, feature=STATE, channel="joint_2 [2]"
        ),
    ],
    "channel-nearly-constant": [
        plant(
            "v2.1",
            in_channel("action", 3, lambda e, f, v: 0.5 + v * 1e-5),
            STALE,
            feature="action",
            channel="joint_3 [3]",
        ),
    ],
    "channel-rare-binary": [
        plant(
            "v2.1",
            in_channel("action", 5, lambda e, f, v: float((e, f) in ((0, 9), (3, 30)))),
            STALE,
            "channel-extreme-scale",
            feature="action",
            channel="gripper [5]",
        ),
    ],
    "paired-grippers-differ": [
        plant(
            "v3.0",
            all_of(
                in_feature(
                    STATE, names=["a", "b", "c", "d", "left_gripper_position", "right_gripper_position"]
                ),
                shrunk_gripper,
            ),
            STALE,
            "stats-quantiles-wrong",
            file=INFO,
            feature=STATE,
            channel="left_gripper_position [4]",
        ),
    ],
    "pickle-file": [
        plant("v2.1", write("meta/stats.pkl", b"x"), file="meta/stats.pkl"),
        plant("v3.0", write("meta/cache", pickle.dumps({"a": 1})), file="meta/cache"),
    ],
    "path-leaves-folder": [
        plant(
            "v2.1",
            in_info(data_path="../other/episode_{episode_index:06d}.parquet"),
            "template-does-not-resolve",
            file=INFO,
            feature="data_path",
        ),
        plant(
            "v3.0",
            in_info(video_path="/data/{video_key}/{chunk_index}/{file_index}.mp4"),
            "template-does-not-resolve",
            feature="video_path",
        ),
        plant(
            "v2.1",
            in_info(data_path="data/{episode_index:099999999999d}.parquet"),
            "template-does-not-resolve",
            feature="data_path",
        ),
        plant("v2.1", linked_outside(video(HAND, 1)), file=video(HAND, 1), severity="note"),
    ],
    "file-hash-differs": [
        plant(
            "v3.0",
            with_provenance(one_bit(f"videos/{HEAD}/chunk-000/file-001.mp4", 0.6)),
            file=f"videos/{HEAD}/chunk-000/file-001.mp4",
        ),
        plant(
            "v2.1",
            with_provenance(in_column(data(2), "action", one_element(5, 1, 0.123))),
            STALE,
            file=data(2),
        ),
        plant("v2.1", with_provenance(remove(TASKS)), "task-missing", file=TASKS),
    ],
    "row-groups-not-per-episode": [
        plant(
            "v3.0",
            in_table("data/chunk-000/file-001.parquet", lambda t: t),
            file="data/chunk-000/file-001.parquet",
        ),
    ],
    "task-changes-within-episode": [
        plant("v2.1", in_column(data(1), "task_index", at(8, 0)), STALE, episode=1, feature="task_index"),
    ],
    "timestamps-global": [
        plant(
            "v2.1",
            in_column(data(2), "timestamp", lambda v: [x + 12.0 for x in v]),
            STALE,
            "timestamps-off",
            episode=2,
            feature="timestamp",
        ),
    ],
    "time-bases-mixed": [
        plant(
            "v3.0",
            in_column(
                "data/chunk-000/file-001.parquet",
                "timestamp",
                lambda v: [x * 1000 if row < LENGTHS[2] else x for row, x in enumerate(v)],
            ),
            STALE,
            "timestamps-off",
            episode=2,
            feature="timestamp",
        ),
        plant(
            "v2.1",
            in_column(
                data(1),
                "timestamp",
                lambda v: [x if f < 30 else x + 1.7e9 for f, x in enumerate(v)],
                pa.float64(),
            ),
            STALE,
            "timestamps-off",
            episode=1,
            frame=30,
        ),
        plant(
            "v2.1",
            in_column(data(1), "timestamp", lambda v: [x if f < 30 else x * 1000 for f, x in enumerate(v)]),
            STALE,
            "timestamps-off",
            episode=1,
            frame=30,
        ),
    ],
    "clock-drift": [
        plant(
            "v2.1",
            in_column(data(3), "timestamp", lambda v: [x * 1.02 for x in v]),
            STALE,
            "timestamps-off",
            episode=3,
            frame=79,
        ),
    ],
    "stats-count-differs": [
        plant("v3.0", in_json(STATS, lambda s: s["action"].update(count=[64])), feature="action"),
        plant("v2.1", in_stats(1, "action", lambda s: s.update(count=[63])), episode=1, feature="action"),
    ],
    "stats-foreign": [
        plant("v3.0", foreign_stats, STALE, file=STATS),
        plant("v2.1", in_lines(EPISODES_STATS, swapped_stats), STALE, file=EPISODES_STATS, episode=3),
    ],
    "stats-quantiles-averaged": [
        plant("v3.0", averaged_quantiles, "stats-quantiles-wrong", file=STATS, feature=STATE),
    ],
    "cameras-swapped": [
        plant("v2.1", two_scenes(swapped=2), deep=True, file=video(HAND, 2), episode=2, feature=HAND),
    ],
    "picture-missing": [
        plant(
            "v2.1",
            in_picture(data(2), 7, lambda cell: None),
            file=data(2),
            episode=2,
            frame=7,
            feature=HAND,
        ),
        plant("v3.0", in_picture(ROW_FILE, 60, lambda cell: b""), episode=1, frame=4, feature=HAND),
    ],
    "picture-damaged": [
        plant("v2.1", in_picture(data(1), 9, lambda cell: cell[:-30]), episode=1, frame=9, feature=HAND),
        plant(
            "v2.1",
            in_picture(data(1), 9, lambda cell: cell[:60] + bytes([cell[60] ^ 4]) + cell[61:]),
            file=data(1),
            episode=1,
            frame=9,
            feature=HAND,
        ),
        plant("v3.0", in_picture(ROW_FILE, 0, lambda cell: b"none"), episode=0, frame=0, feature=HAND),
        plant("v2.1", all_of(in_rows, spoilt_page(data(1), HAND)), file=data(1), feature=HAND),
        plant(
            "v2.1",
            in_picture(data(3), 5, lambda cell: to_jpeg(decoded(cell))[:-9]),
            episode=3,
            frame=5,
            feature=HAND,
        ),
    ],
    "picture-size-differs": [
        plant(
            "v2.1",
            in_picture(data(0), 3, lambda cell: to_png(np.zeros((64, 64, 3), np.uint8))),
            file=data(0),
            episode=0,
            frame=3,
            feature=HAND,
        ),
        plant("v3.0", all_of(in_rows, in_feature(HAND, shape=[48, 64, 3])), feature=HAND, episode=0, frame=0),
    ],
    "video-undecodable": [
        plant(
            "v2.1",
            # The checksums are right, so only decoding tells.
            in_picture(data(1), 9, lambda cell: re_summed(cell, b"IDAT", bytes(40))),
            deep=True,
            file=data(1),
            episode=1,
            frame=9,
            feature=HAND,
        ),
        plant("v2.1", spoilt_pictures, deep=True, file=video(HAND, 1), episode=1, feature=HAND),
    ],
    "video-black": [
        plant(
            "v2.1",
            in_picture(data(2), range(20, 26), lambda cell: to_png(np.zeros((32, 48, 3), np.uint8))),
            deep=True,
            file=data(2),
            episode=2,
            frame=20,
            feature=HAND,
        ),
        plant("v2.1", encoded(1, black=12), deep=True, episode=1, frame=0, feature=HAND),
    ],
    "video-frozen": [plant("v2.1", encoded(1, still=True), deep=True, episode=1, frame=21, feature=HAND)],
}
