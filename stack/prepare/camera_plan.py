"""The cameras of a plan: one output feature each, and black pictures where the manifest wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stack.dataset.model import Feature
from stack.dataset.selection import Selected
from stack.dataset.video_model import VideoInfo
from stack.dataset.video_mux import mp4_holds
from stack.errors import BadRequest
from stack.prepare.blueprint import SourcePlan
from stack.prepare.cameras import Filled, common_kind, fill_black
from stack.prepare.problems import Problems
from stack.prepare.reconcile import Reconciled, compare_camera
from stack.prepare.scan import Scan


def nowhere(camera: str, where: str) -> BadRequest:
    return BadRequest(
        "prepare-camera-nowhere",
        f"cameras.{camera}: no selected episode of any source has pictures of it",
        where=where,
        do=f"leave cameras.{camera} out, or correct its name",
    )


def camera_feature(
    camera: str,
    sources: Sequence[SourcePlan],
    selected: Sequence[Selected],
    scans: Sequence[Scan],
    where: str,
    problems: Problems,
    reconciled: list[Reconciled],
    *,
    is_copied: bool = True,
    is_joined: bool = True,
) -> Feature | None:
    """The output feature of a camera, compared over all sources that have it.

    Args:
        is_copied: whether packets are copied, or files linked, where they can be.
        is_joined: whether packets are copied into new files.
    """
    declared = {s.dataset.name: s.dataset.features[s.cameras[camera]] for s in sources if camera in s.cameras}
    first: dict[str, Selected] = {}
    for item in selected:
        first.setdefault(item.recipe, item)
    in_rows = common_kind(camera, declared, first, where, problems)
    if in_rows is not None:
        if lacking := [s.dataset.name for s in sources if camera not in s.cameras]:
            problems.add(
                BadRequest(
                    "prepare-picture-fill",
                    f"{camera}: pictures that lie in rows cannot be filled with black in {lacking[0]}",
                    where=where,
                    do=f"say cameras.{camera}.when_missing: drop, or leave {lacking[0]} out",
                )
            )
        return in_rows
    clips = [
        (item.episode.origin.dataset, item.episode.origin.episode, scan.videos[camera])
        for item, scan in zip(selected, scans, strict=True)
        if camera in scan.videos
    ]
    if not clips:
        problems.add(nowhere(camera, where))
        return None
    if is_joined:
        _check_codecs(camera, clips, problems)
    reconciled += compare_camera(camera, clips, declared, where, problems, is_copied=is_copied)
    info = clips[0][2]
    return replace(
        next(iter(declared.values())), name=camera, dtype="video", shape=(info.height, info.width, 3)
    )


def _check_codecs(camera: str, clips: Sequence[tuple[str, int, VideoInfo]], problems: Problems) -> None:
    for source, episode, info in clips:
        if not mp4_holds(info.codec):
            problems.add(
                BadRequest(
                    "prepare-codec-not-in-mp4",
                    f"{camera}, episode {episode} of {source}: its pictures are {info.codec}, "
                    "which no MP4 holds: they cannot be copied",
                    where=str(info.file),
                    do="encode all pictures anew (videos: transcode), or keep one file an episode as it is "
                    "(videos: link)",
                )
            )
            return


def fill_cameras(
    features: Mapping[str, Feature],
    selected: Sequence[Selected],
    scans: Sequence[Scan],
    fps: float,
    scratch: Path,
) -> tuple[list[Selected], tuple[Filled, ...]]:
    filled: list[Filled] = []
    items = list(selected)
    for camera, feature in features.items():
        if feature.dtype == "video":
            like = next(scan.videos[camera] for scan in scans if camera in scan.videos)
            items, entry = fill_black(camera, items, like, fps, scratch)
            filled += [entry] if entry is not None else []
    return items, tuple(filled)
