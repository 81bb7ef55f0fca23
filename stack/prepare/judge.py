"""The questions that a delivery raises: refused until the manifest answers them, with the lines to add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stack.dataset.model import ClipRef, Dataset
from stack.dataset.selection import Selected, Selection
from stack.errors import BadRequest
from stack.manifests.dataset import Source
from stack.prepare.episodes import ranges
from stack.prepare.problems import Problems, Settles
from stack.prepare.scan import Scan

# Reading works around these, but writing on would be a guess.
NOT_TO_GUESS = ("task-index-twice",)

FILES_SHOWN = 5

Own = Sequence[tuple[Selected, Scan]]


def check_read(dataset: Dataset, where: str, problems: Problems) -> None:
    for code, text in dataset.notes:
        if code in NOT_TO_GUESS:
            problems.add(
                BadRequest(
                    f"prepare-{code}",
                    f"source '{dataset.name}': {text}",
                    where=str(dataset.root),
                    do="mend the delivery's meta files, or exclude the episode",
                )
            )


def check_texts(selection: Selection) -> None:
    """Refuse texts that no file can hold: half of a pair of surrogates, which JSON can spell ("\\ud800").

    Raises:
        BadRequest: a task, a feature's or a channel's name, or robot_type holds one.
    """
    for item in selection.episodes:
        for text in item.episode.tasks:
            if not _is_writable(text):
                origin = item.episode.origin
                raise BadRequest(
                    "prepare-text-unwritable",
                    f"task {text!a} of episode {origin.episode} of '{origin.dataset}' holds half a "
                    "character, which no file can hold",
                    where=f"{item.episode.rows.file}",
                    do=f"mend the text in the delivery's meta files, or exclude_episodes: [{origin.episode}]",
                )
    names = [(name, text) for name, f in selection.features.items() for text in (name, *(f.names or ()))]
    for name, text in [*names, ("robot_type", selection.robot_type or "")]:
        if not _is_writable(text):
            raise BadRequest(
                "prepare-text-unwritable",
                f"{text!a} of {name!a} holds half a character, which no file can hold",
                do="mend it in meta/info.json of the delivery, or name it anew in the manifest "
                "(features, robot_type)",
            )


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_rows_there(dataset: Dataset, source: Source, taken: int, problems: Problems) -> None:
    """Episodes that were recorded, as meta/ and the other files show, are not passed over without a word.

    Args:
        taken: how many episodes would be taken without them.
    """
    lost = [absent for absent in dataset.absent if absent.is_lost]
    if not lost:
        return
    files = list(dict.fromkeys(absent.file for absent in lost if absent.file))
    shown = ", ".join(files[:FILES_SHOWN]) + (
        f" and {len(files) - FILES_SHOWN} more" if len(files) > FILES_SHOWN else ""
    )
    numbers = tuple(absent.index for absent in lost)
    problems.add(
        BadRequest(
            "prepare-rows-missing",
            f"source '{dataset.name}': meta/ lists episodes {ranges(numbers)}, but their rows are not there"
            + (f"; they should lie in {shown}" if files else ""),
            where=str(dataset.root),
            do="fetch the row files again, or exclude these episodes",
        ),
        Settles(source, exclude=numbers, of=taken + len(lost)),
    )


def check_missing_cameras(
    dataset: Dataset,
    cameras: Mapping[str, str],
    rules: Mapping[str, str],
    own: Own,
    source: Source,
    problems: Problems,
) -> tuple[str, ...]:
    """Output cameras that lack files and that the manifest lets go.

    Args:
        cameras: output camera -> the source's.
        rules: output camera -> `when_missing`.
    """
    gone = []
    for camera, given in cameras.items():
        rule = rules.get(camera, "refuse")
        if dataset.features[given].is_image or rule == "black":
            continue
        lacking = [s.episode.origin.episode for s, _ in own if camera not in s.episode.clips]
        if not lacking:
            continue
        if rule == "drop":
            gone.append(camera)
            continue
        if len(lacking) < len(own):
            problems.add(
                BadRequest(
                    "prepare-clips-missing",
                    f"source '{dataset.name}': camera '{given}' has no video file for {len(lacking)} of "
                    f"{len(own)} episodes: {lacking}",
                    where=str(dataset.root),
                    do=f"exclude these episodes, or fill the camera: {_rule(camera, given)}",
                ),
                Settles(source, exclude=tuple(lacking), of=len(own)),
            )
        elif source.decide.missing_cameras == "drop":
            gone.append(camera)
        else:
            problems.add(
                BadRequest(
                    "prepare-camera-missing",
                    f"source '{dataset.name}' declares camera '{given}', but no file holds it",
                    where=str(dataset.root),
                    do=f"if the recording has no such camera as '{given}', drop it; or fill it: "
                    f"{_rule(camera, given)}",
                ),
                Settles(source, {"missing_cameras": "drop"}, of=len(own)),
            )
    return tuple(gone)


def check_clips(dataset: Dataset, own: Own, source: Source, problems: Problems) -> None:
    """Each video must hold exactly one frame a row, so that counting finds every episode's pictures."""
    claimed: dict[Path, list[tuple[int, ClipRef]]] = {}  # file -> (episode, clip) of all that claim a part
    for episode in dataset.episodes:
        for clip in episode.clips.values():
            claimed.setdefault(clip.file, []).append((episode.index, clip))
    told: set[Path] = set()
    taken = {selected.episode.origin.episode for selected, _ in own}
    for selected, scan in own:
        for camera, info in scan.videos.items():
            clip = selected.episode.clips[camera]
            rows = sum(other.count for _, other in claimed[clip.file])
            if clip.file in told or (info.frames == rows and _tiles(claimed[clip.file])):
                continue
            told.add(clip.file)
            numbers = [number for number, _ in claimed[clip.file]]
            which = (
                f"{camera}, episode{'s' if len(numbers) > 1 else ''} {ranges(numbers)} of '{dataset.name}'"
            )
            starts = [t for code, t in dataset.notes if code == "clip-start-differs" and clip.file.name in t]
            what = f"the video has {info.frames} frames, its episodes have {rows} rows"
            if info.frames == rows:
                what = f"from_timestamp does not lead from one episode to the next: {'; '.join(starts)}"
            elif starts:
                what += f" ({starts[0].split(';')[0]})"
            problems.add(
                BadRequest(
                    "prepare-frames-differ" if info.frames != rows else "prepare-clip-start-differs",
                    f"{which}: {what}",
                    where=str(clip.file),
                    do="mend meta/episodes, or exclude the episodes that share the file",
                ),
                Settles(source, exclude=tuple(n for n in numbers if n in taken), of=len(own)),
            )


def _tiles(clips: Sequence[tuple[int, ClipRef]]) -> bool:
    """Whether each clip begins where the one before it ends."""
    position = 0
    for clip in sorted((clip for _, clip in clips), key=lambda clip: clip.start):
        if clip.start != position:
            return False
        position += clip.count
    return True


def check_clocks(dataset: Dataset, own: Own, source: Source, where: str, problems: Problems) -> float | None:
    """The worst difference in seconds where timestamps are to be replaced; None where all are good."""
    off = [(s.episode.origin.episode, scan.clock) for s, scan in own if scan.clock is not None]
    if not off:
        return None
    number, worst = max(off, key=lambda pair: pair[1].difference_s)
    if source.decide.timestamps == "restamp":
        return worst.difference_s
    problems.add(
        BadRequest(
            "prepare-timestamps",
            f"source '{dataset.name}': timestamps are not frame_index / fps ({dataset.fps:g}) in {len(off)} "
            f"of {len(own)} episodes; worst in episode {number}, frame {worst.frame}: {worst.got_s:.4f} s is "
            f"stored, {worst.meant_s:.4f} s is meant, {worst.difference_s:.4f} s apart (1e-4 s is allowed)",
            where=str(dataset.root),
            do="if the videos hold one frame a row at a constant rate (their frame counts are checked), "
            "replace the timestamps",
        ),
        Settles(source, {"timestamps": "restamp"}, of=len(own)),
    )
    return None


def _rule(camera: str, given: str) -> str:
    source = "" if camera == given else f"from: {given}, "
    return f"cameras: {{{camera}: {{{source}when_missing: black}}}}"
