"""Cameras: which ones, under which names, and what becomes of one that is missing somewhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from av.video.frame import VideoFrame

from stack.dataset.model import ClipRef, Dataset, Feature
from stack.dataset.pictures import picture_shape
from stack.dataset.selection import Selected
from stack.dataset.video import VideoInfo, probe
from stack.dataset.video_encode import encode_file, same_again
from stack.dataset.video_mux import exact_rate
from stack.errors import BadRequest
from stack.manifests.dataset import DatasetManifest
from stack.prepare.episodes import ranges
from stack.prepare.problems import Problems

BLACK_CRF = 30


def choose_cameras(
    dataset: Dataset,
    known: Mapping[str, Feature],
    manifest: DatasetManifest,
    shared: Iterable[str],
    where: str,
) -> dict[str, str]:
    """Output camera -> the source's camera; without the ones that may be missing and are.

    Args:
        known: see `known_features`.

    Raises:
        BadRequest: a camera that the source does not declare and that may not be missing.
    """
    own = {name: feature.name for name, feature in known.items() if feature.is_camera}
    if manifest.cameras is None:
        return {name: own[name] for name in shared}
    chosen = {}
    for name, camera in manifest.cameras.items():
        wanted = [camera.source] if camera.source is not None else []
        found = [own[c] for c in (*wanted, name) if c in own]
        if found:
            chosen[name] = found[0]
        elif camera.when_missing == "refuse":
            given = camera.source or name
            near = difflib.get_close_matches(given, own, n=1, cutoff=0.5)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise BadRequest(
                "prepare-no-such-camera",
                f"cameras.{name}: source '{dataset.name}' has no camera '{given}'{hint}; it has: "
                f"{', '.join(own) or 'none'}",
                where=where,
                do=f"leave cameras.{name} out, or name the right one: {name}: {{from: ...}}, or say what is "
                "to become of it: when_missing: drop, or when_missing: black",
            )
    return chosen


def common_kind(
    name: str, declared: Mapping[str, Feature], first: Mapping[str, Selected], where: str, problems: Problems
) -> Feature | None:
    """The output feature of a camera whose pictures lie in the rows; None for one with videos.

    Args:
        declared: source -> its camera.
        first: source -> its first selected episode, whose first picture tells the size.
    """
    kinds = {source: feature.dtype for source, feature in declared.items()}
    if len(set(kinds.values())) > 1:
        shown = ", ".join(f"{kind} in {source}" for source, kind in kinds.items())
        problems.add(
            BadRequest(
                "prepare-camera-kinds",
                f"{name}: pictures lie in videos here and in rows there: {shown}",
                where=where,
                do=f"leave cameras.{name} out, or leave one of these sources out",
            )
        )
        return None
    if set(kinds.values()) != {"image"}:
        return None
    sizes = {s: picture_shape(first[s].episode, feature) for s, feature in declared.items()}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{w}x{h} in {source}" for source, (h, w, _) in sizes.items())
        problems.add(
            BadRequest(
                "prepare-camera-differs",
                f"{name}: size differs: {shown}",
                where=where,
                do=f"leave cameras.{name} out, or leave one of these sources out",
            )
        )
    return Feature(name, "image", next(iter(sizes.values())))


@dataclass(frozen=True)
class Filled:
    """Episodes that get black pictures of a camera.

    Attributes:
        episodes: source -> its episodes.
        info: the file of black pictures that all their clips are taken from.
    """

    camera: str
    episodes: Mapping[str, tuple[int, ...]]
    info: VideoInfo

    def __str__(self) -> str:
        where = "; ".join(
            f"{source}: episodes {ranges(numbers)}" for source, numbers in self.episodes.items()
        )
        return f"{self.camera}: black pictures, because there is no video, in {where}"


def fill_black(
    camera: str, selected: Sequence[Selected], like: VideoInfo, fps: float, scratch: Path
) -> tuple[list[Selected], Filled | None]:
    """Give episodes that lack a camera a clip of black pictures of the others' codec and size.

    One file, as long as the longest of them, serves all: each of its pictures is a key frame.

    Args:
        like: a video of this camera.
        scratch: where the file is made; it must outlive the writing.
    """
    lacking = [item.episode for item in selected if camera not in item.episode.clips]
    if not lacking:
        return list(selected), None
    frames = max(episode.length for episode in lacking)
    encoding = replace(same_again(like), gop=1, crf=BLACK_CRF)
    name = f"black-{like.codec}-{like.width}x{like.height}-{like.pix_fmt}-{fps:g}-{frames}.mp4"
    file = scratch / name
    if not file.exists():  # a killed run may have made it: names tell all that is in it
        scratch.mkdir(parents=True, exist_ok=True)
        partial = scratch / f".partial-{name}"
        encode_file(_black(like.width, like.height, frames), partial, encoding, exact_rate(fps))
        partial.replace(file)
    filled = []
    for item in selected:
        episode = item.episode
        if camera not in episode.clips:
            clips = {**episode.clips, camera: ClipRef(file, 0, episode.length)}
            item = replace(item, episode=replace(episode, clips=clips))
        filled.append(item)
    numbers: dict[str, tuple[int, ...]] = {}
    for episode in lacking:
        numbers[episode.origin.dataset] = (*numbers.get(episode.origin.dataset, ()), episode.origin.episode)
    return filled, Filled(camera, numbers, probe(file))


def _black(width: int, height: int, frames: int) -> Iterator[VideoFrame]:
    picture = np.zeros((height, width, 3), dtype=np.uint8)
    for _ in range(frames):
        yield VideoFrame.from_ndarray(picture, format="rgb24")
