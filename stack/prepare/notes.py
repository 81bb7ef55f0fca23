"""What a plan tells beside its choices: what was derived, replaced, or will be encoded anew."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from stack.dataset.selection import Selected
from stack.dataset.stats_stored import NotKept
from stack.dataset.video import VideoInfo
from stack.dataset.video_segments import Anew
from stack.prepare.blueprint import SourcePlan
from stack.prepare.episodes import ranges
from stack.prepare.scan import Scan


def plan_notes(
    sources: Sequence[SourcePlan],
    selected: Sequence[Selected],
    scans: Sequence[Scan],
    casts: Mapping[str, str],
    *,
    is_copied: bool = True,
) -> tuple[str, ...]:
    """In the order of sources and episodes.

    Args:
        casts: what the manifest asks for, which needs no note.
        is_copied: whether pictures are copied where they can be.
    """
    notes = [f"{s.dataset.name}: {text}" for s in sources for _, text in s.dataset.notes]
    derived: dict[tuple[str, str], list[int]] = {}
    for item, scan in zip(selected, scans, strict=True):
        for text in scan.derived:
            derived.setdefault((item.recipe, text), []).append(item.episode.origin.episode)
    for (name, text), episodes in derived.items():
        notes.append(f"{name}: {text} in episodes {ranges(episodes)}; it is derived")
    notes += _coarse_notes(selected, scans, casts)
    notes += _cut_notes(sources, selected, scans)
    notes += _open_notes(selected, scans) if is_copied else []
    notes += _statistics_notes(selected, scans)
    for source in sources:
        if source.restamped_s is not None:
            notes.append(
                f"{source.dataset.name}: timestamps replaced by frame_index / fps; "
                f"they were off by up to {source.restamped_s:.3f} s"
            )
    return tuple(notes)


def _coarse_notes(selected: Sequence[Selected], scans: Sequence[Scan], casts: Mapping[str, str]) -> list[str]:
    """Features that are float32 because nobody asked for more, and lose what tells their values apart."""
    coarse: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for item, scan in zip(selected, scans, strict=True):
        for feature in scan.coarse.keys() - casts.keys():
            told = coarse.setdefault((item.recipe, feature), [])
            told.append((item.episode.origin.episode, scan.coarse[feature]))
    return [
        f"{name}: {feature} loses detail as float32 in episodes {ranges(episode for episode, _ in told)} "
        f"(the first: {told[0][1]}); cast: {{{feature}: float64}} keeps it"
        for (name, feature), told in sorted(coarse.items())
    ]


def _open_notes(selected: Sequence[Selected], scans: Sequence[Scan]) -> list[str]:
    """Copied clips with pictures that lerobot cannot fetch."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for item, scan in zip(selected, scans, strict=True):
        for camera, info in scan.videos.items():
            clip, anew = item.episode.clips[camera], scan.anew.get(camera)
            start, stop = (clip.start, clip.start + clip.count) if anew is None else anew.copied
            count = bisect_left(info.leading, stop) - bisect_left(info.leading, start)
            if count:
                told = found.setdefault((item.recipe, camera), [])
                told.append((item.episode.origin.episode, count))
    return [
        f"{name}: {camera} has open groups of pictures in episodes {ranges(episode for episode, _ in told)}: "
        f"{sum(count for _, count in told)} pictures are built from what is before the key frame that a "
        "loader seeks to, so lerobot stops at them or gets wrong ones; they are copied as they are. videos: "
        "transcode writes pictures that can be fetched (`stack audit`: video-open-gop)"
        for (name, camera), told in sorted(found.items())
    ]


def _statistics_notes(selected: Sequence[Selected], scans: Sequence[Scan]) -> list[str]:
    """Cameras whose stored statistics are not kept, and the first reason of each kind."""
    groups: dict[tuple[str, str, str], list[tuple[int, str]]] = {}
    for item, scan in zip(selected, scans, strict=True):
        for camera, found in scan.statistics.items():
            if isinstance(found, NotKept):
                told = groups.setdefault((item.recipe, camera, found.kind), [])
                told.append((item.episode.origin.episode, found.why))
    return [
        f"{name}: {camera}: statistics of {len(told)} clips are sampled by decoding, the stored ones being "
        f"{kind} (episodes {ranges(episode for episode, _ in told)}; the first: {told[0][1]})"
        for (name, camera, kind), told in groups.items()
    ]


def _cut_notes(
    sources: Sequence[SourcePlan], selected: Sequence[Selected], scans: Sequence[Scan]
) -> list[str]:
    """Clips that are not copied as they are; what the writer does with them is known from their packets."""
    written = {source.dataset.name: source.cameras for source in sources}
    groups: dict[tuple[str, str, bool, str], list[tuple[int, Anew]]] = {}
    for item, scan in zip(selected, scans, strict=True):
        for camera, anew in scan.anew.items():
            if camera not in written[item.recipe]:
                continue
            uncut = "" if anew.can_splice else scan.videos[camera].codec
            told = groups.setdefault((item.recipe, camera, anew.pictures == anew.of, uncut), [])
            told.append((item.episode.origin.episode, anew))
    return [_cut_note(*key, told) for key, told in groups.items()]


def _cut_note(name: str, camera: str, is_all: bool, uncut: str, told: Sequence[tuple[int, Anew]]) -> str:
    of = sum(anew.of for _, anew in told)
    count = f"all {of}" if is_all else f"{sum(anew.pictures for _, anew in told)} of {of}"
    return (
        f"{name}: {camera}: {count} pictures of episodes {ranges(episode for episode, _ in told)} are "
        f"encoded anew{'' if is_all else ', the others are copied'} (the first: {told[0][1].why}"
        f"{f'; such {uncut} cannot be cut by copying' if uncut else ''})"
    )


LEFT_OUT: tuple[tuple[Callable[[VideoInfo], bool], str, str], ...] = (
    (lambda info: info.has_audio, "has sound", "it is left out"),
    (
        lambda info: info.tracks > 1,
        "has more than one video track",
        "the first one is taken, as lerobot does with PyAV, the others are left out",
    ),
    (
        lambda info: info.is_turned,
        "asks to be shown turned, mirrored or stretched",
        "pictures are written as they are stored, without the mark, which decoders follow or not",
    ),
)


def left_out_notes(selected: Sequence[Selected], scans: Sequence[Scan]) -> list[str]:
    """What files of cameras hold beside their pictures, and no written file has."""
    notes = []
    for is_there, what, done in LEFT_OUT:
        found: dict[tuple[str, str], list[int]] = {}
        for item, scan in zip(selected, scans, strict=True):
            for camera, info in scan.videos.items():
                if is_there(info):
                    found.setdefault((item.recipe, camera), []).append(item.episode.origin.episode)
        notes += [
            f"{name}: {camera} {what} in episodes {ranges(episodes)}; {done}"
            for (name, camera), episodes in found.items()
        ]
    return notes + _time_notes(selected, scans)


def _time_notes(selected: Sequence[Selected], scans: Sequence[Scan]) -> list[str]:
    """Cameras whose files show frames at other times than their numbers over fps: numbers are what counts."""
    off: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for item, scan in zip(selected, scans, strict=True):
        for camera, worst_s in scan.off_s.items():
            off.setdefault((item.recipe, camera), []).append((item.episode.origin.episode, worst_s))
    return [
        f"{name}: {camera} shows frames at other times than frame number / fps in episodes "
        f"{ranges(episode for episode, _ in found)}, up to {max(off_s for _, off_s in found):.3f} s away; "
        "there is one frame a row, and frame n is written at n / fps"
        for (name, camera), found in off.items()
    ]
