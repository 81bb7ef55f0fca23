"""The evidence of one episode: its rows read and its videos counted, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from stack.dataset.model import ClipRef, Feature
from stack.dataset.rows import column_array, column_names, decode_column, hold_rows, read_rows
from stack.dataset.selection import Recipe, Selected, assemble, frame_tasks, needed_columns
from stack.dataset.stats import LARGEST, uncountable
from stack.dataset.stats_stored import KeptCamera, NotKept, Raw, keep_or_why
from stack.dataset.video import VideoInfo, probe
from stack.dataset.video_segments import Anew, encoded_anew
from stack.errors import BadRequest, StackError

TIMESTAMP_TOLERANCE_S = 1e-4
COARSE = 1e-3  # of what lies between a channel's smallest and largest value
TIMESTAMP = Feature("timestamp", "float64", (1,))
FRAME_INDEX = Feature("frame_index", "int64", (1,))
EPISODE_INDEX = Feature("episode_index", "int64", (1,))
SHARED = ("codec", "pix_fmt", "key_frames", "pts", "extradata", "fps", "time_base")


@dataclass(frozen=True, slots=True)
class ScanJob:
    """`features`: output features without cameras; `stored`: output camera -> the source's statistics of this
    episode, None where all clips are to be sampled; `transcodes`: whether all pictures are encoded anew.
    """

    selected: Selected
    recipe: Recipe
    features: Mapping[str, Feature]
    fps: float
    stored: Mapping[str, Raw] | None = None
    transcodes: bool = False


@dataclass(frozen=True)
class Clock:
    """The timestamp that is farthest from frame_index / fps."""

    frame: int
    got_s: float
    meant_s: float

    @property
    def difference_s(self) -> float:
        return abs(self.got_s - self.meant_s)


@dataclass(frozen=True, slots=True)
class Scan:
    """What one episode shows.

    Attributes:
        tasks: texts in order of first appearance.
        clock: the worst timestamp where one is off by more than the tolerance; None where all are good.
        derived: index columns that differ harmlessly.
        videos: output camera -> its file.
        problems: why this episode cannot be taken.
        statistics: output camera -> what became of its stored statistics, where they are asked for.
        off_s: output camera -> how far from its number over fps its file shows a frame, where that is farther
            than ticks explain.
        coarse: output features that lose detail by becoming float32 -> what happens to one channel.
        anew: output camera -> which of its pictures are encoded anew, where not all are copied; empty where
            all pictures are transcoded.
    """

    tasks: tuple[str, ...]
    clock: Clock | None
    derived: tuple[str, ...]
    videos: Mapping[str, VideoInfo]
    problems: tuple[StackError, ...]
    statistics: Mapping[str, KeptCamera | NotKept] = field(default_factory=dict)
    off_s: Mapping[str, float] = field(default_factory=dict)
    coarse: Mapping[str, str] = field(default_factory=dict)
    anew: Mapping[str, Anew] = field(default_factory=dict)


class Shared:
    """Makes equal parts of scans one: what comes from workers is told anew for each of thousands of files."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def scan(self, scan: Scan, selected: Selected) -> Scan:
        """The same scan of an episode, in less memory."""
        clips = selected.episode.clips
        videos = {camera: self._info(info, clips[camera].file) for camera, info in scan.videos.items()}
        return replace(scan, tasks=self._one(scan.tasks), videos=videos)

    def _info(self, info: VideoInfo, file: Path) -> VideoInfo:
        own = {name: self._one(getattr(info, name)) for name in SHARED}
        return replace(info, file=file, **own)

    def _one(self, value: Any) -> Any:
        return self._known.setdefault((type(value), value), value)


def scan_episode(job: ScanJob) -> Scan:
    """Read an episode's rows and count its videos' frames; problems are returned, not raised."""
    problems: list[StackError] = []
    derived: list[str] = []
    tasks: tuple[str, ...] = ()
    clock = None
    coarse: dict[str, str] = {}
    with suppress(StackError):  # each reader below tells of its own column
        hold_rows(job.selected.episode.rows, needed_columns(job.recipe, job.features))
    try:
        tasks = tuple(dict.fromkeys(frame_tasks(job.selected.episode, job.recipe)))
    except StackError as error:
        problems.append(_of_episode(error, job))
    try:
        columns = column_names(job.selected.episode.rows)
        clock = _clock(job, columns)
        _check_numbers(job, columns, derived, problems)
        _check_finite(job, problems)
        coarse = _coarse(job)
    except StackError as error:
        problems.append(_of_episode(error, job))
    videos: dict[str, VideoInfo] = {}
    anew: dict[str, Anew] = {}
    for camera, clip in job.selected.episode.clips.items():
        try:
            info = probe(clip.file)
        except StackError as error:
            problems.append(error)
            continue
        if info.pix_fmt is not None:
            videos[camera] = info
            found = _anew(job, clip, info)
            anew |= {camera: found} if found is not None else {}
            continue
        origin = job.selected.episode.origin
        problems.append(
            BadRequest(
                "prepare-video-damaged",
                f"{camera}, episode {origin.episode} of '{origin.dataset}': no picture of the video can be "
                "decoded, though its packets are there",
                where=str(clip.file),
                do=f"exclude_episodes: [{origin.episode}], or fetch the file again",
            )
        )
    statistics = _statistics(job, videos)
    off_s = _off_s(job, videos)
    return Scan(tasks, clock, tuple(derived), videos, tuple(problems), statistics, off_s, coarse, anew)


def _anew(job: ScanJob, clip: ClipRef, info: VideoInfo) -> Anew | None:
    """Of a file that has just been looked at, whose packets are still held."""
    if job.transcodes or not 0 <= clip.start < clip.start + clip.count <= info.frames:
        return None
    return encoded_anew(clip)


def _of_episode(error: StackError, job: ScanJob) -> StackError:
    """The error with the episode's number, for what is told of a row file that others may share."""
    told = f"episode {job.selected.episode.origin.episode}"
    if told in error.where or told in error.what:
        return error
    return type(error)(error.id, error.what, where=f"{error.where}, {told}", do=error.do, exit=error.exit)


def _off_s(job: ScanJob, videos: Mapping[str, VideoInfo]) -> dict[str, float]:
    found = {}
    for camera, info in videos.items():
        clip = job.selected.episode.clips[camera]
        start = max(0, clip.start)
        times_s = info.times_s(start, max(start, clip.start + clip.count))
        meant_s = np.arange(start, start + len(times_s)) / job.fps
        worst_s = float(np.abs(times_s - meant_s).max(initial=0.0))
        if worst_s > max(TIMESTAMP_TOLERANCE_S, float(info.time_base)):
            found[camera] = worst_s
    return found


def _statistics(job: ScanJob, videos: Mapping[str, VideoInfo]) -> dict[str, KeptCamera | NotKept]:
    if job.stored is None:
        return {}
    clips = {camera: job.selected.episode.clips[camera] for camera in videos}
    return {
        camera: keep_or_why(job.stored.get(camera), clip)
        for camera, clip in clips.items()
        if clip.start >= 0 and clip.start + clip.count <= videos[camera].frames
    }


def _clock(job: ScanJob, columns: tuple[str, ...]) -> Clock | None:
    if "timestamp" not in columns:
        return None
    got = column_array(job.selected.episode, TIMESTAMP)
    meant = np.arange(len(got), dtype=np.float64) / job.fps
    with np.errstate(invalid="ignore"):
        difference = np.where(np.isfinite(got), np.abs(got - meant), np.inf)
        # After 2,048 s one step of a float32 is wider than the tolerance.
        allowed = np.maximum(TIMESTAMP_TOLERANCE_S, np.spacing(meant.astype(np.float32)))
    if (difference <= allowed).all():
        return None
    worst = int(np.argmax(difference))
    return Clock(worst, float(got[worst]), float(meant[worst]))


def _check_numbers(
    job: ScanJob, columns: tuple[str, ...], derived: list[str], problems: list[StackError]
) -> None:
    episode = job.selected.episode
    where = f"{episode.rows.file}, episode {episode.origin.episode}"
    exclude = f"exclude_episodes: [{episode.origin.episode}]"
    if "frame_index" in columns:
        numbers = column_array(episode, FRAME_INDEX)
        if (np.diff(numbers) != 1).any():
            at = int(np.argmax(np.diff(numbers) != 1)) + 1
            what = f"frame_index jumps from {numbers[at - 1]} to {numbers[at]} at row {at}"
            problems.append(BadRequest("prepare-frame-order", what, where=where, do=exclude))
        elif numbers[0] != 0:
            derived.append(f"frame_index starts at {numbers[0]}")
    if "episode_index" in columns:
        numbers = np.unique(column_array(episode, EPISODE_INDEX))
        if len(numbers) > 1:
            what = f"the rows belong to {len(numbers)} episodes: {numbers[:5].tolist()}"
            problems.append(BadRequest("prepare-episodes-mixed", what, where=where, do=exclude))
        elif numbers[0] != episode.origin.episode:
            derived.append(f"episode_index is {numbers[0]} in the file of episode {episode.origin.episode}")


def _check_finite(job: ScanJob, problems: list[StackError]) -> None:
    episode = job.selected.episode
    for name, values in assemble(job.selected, job.recipe, job.features).items():
        if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
            continue
        table = values.reshape(len(values), -1)
        bad = uncountable(table)
        if not bad.any():
            continue
        frame, channel = (int(i) for i in np.argwhere(bad)[0])
        names = job.features[name].names
        label = f"{channel} ('{names[channel]}')" if names is not None else str(channel)
        stored = _stored_value(job, name, frame, channel)
        is_wide = stored is not None and abs(stored) <= LARGEST
        too_large = f" or beyond {LARGEST:g}, where their spread is infinite" if values.dtype == float else ""
        problems.append(
            BadRequest(
                "prepare-not-finite",
                f"{name} holds {'null' if stored is None else stored} at episode {episode.origin.episode}, "
                f"frame {frame}, channel {label}; {int(bad.sum())} values of this episode are not finite in "
                f"{values.dtype}{too_large}",
                where=f"{episode.rows.file}",
                do=(f"cast: {{{name}: float64}} in a manifest keeps such values; or " if is_wide else "")
                + f"exclude_episodes: [{episode.origin.episode}], "
                f"or leave the channel out of features.{name}",
            )
        )


def _stored_value(job: ScanJob, name: str, frame: int, channel: int) -> float | None:
    """What the file has for one channel of an output feature; None for a null."""
    rows = replace(job.selected.episode.rows, start=job.selected.episode.rows.start + frame, count=1)
    row: list[float | None] = []
    for take in job.recipe.columns[name]:
        values = np.ravel(np.array(read_rows(rows, [take.feature.name]).column(0).to_pylist(), dtype=object))
        row += [values[n] for n in (range(len(values)) if take.channels is None else take.channels)]
    return row[channel]


def _coarse(job: ScanJob) -> dict[str, str]:
    """Where rounding to float32 moves values by more than noise, as it does seconds since 1970."""
    episode = job.selected.episode
    found = {}
    for name, feature in job.features.items():
        for take in job.recipe.columns[name] if feature.dtype == "float32" else ():
            stored = read_rows(episode.rows, [take.feature.name]).column(take.feature.name)
            flat = decode_column(stored, episode, take.feature, as_stored=True).reshape(episode.length, -1)
            if flat.dtype.itemsize <= np.dtype("float32").itemsize:
                continue
            channels = np.arange(flat.shape[1]) if take.channels is None else np.array(take.channels)
            values = flat[:, channels]
            with np.errstate(over="ignore", invalid="ignore"):
                moved = np.abs(values - values.astype(np.float32)).max(axis=0)
                span = np.ptp(values, axis=0)
            worst = int(np.argmax(moved - COARSE * span))
            if moved[worst] > COARSE * span[worst] > 0:
                found[name] = (
                    f"channel {channels[worst]} of '{take.feature.name}' by up to {moved[worst]:.3g}, "
                    f"where it spans {span[worst]:.3g}"
                )
    return found
