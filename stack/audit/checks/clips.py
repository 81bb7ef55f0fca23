"""Where v3.0 says that an episode's pictures lie in a joined video."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from stack.audit.clips import ClipSpan
from stack.audit.kinds import Case, check, kind
from stack.faults import Fault, Place

TOLERANCE_S = 1e-4  # lerobot's tolerance_s
CLIP_TIMES = kind(
    "clip-times-wrong",
    "error",
    "time",
    title="from_timestamp or to_timestamp is not where the episode's pictures are",
    consequence="every row takes another frame's or another episode's picture, or the reader runs past "
    "the end of the file",
    mend="recompute both from counted frames: from = frames before / fps, to = from + length / fps; "
    "`stack prepare` does",
)
CLIP_TIMES_MISSING = kind(
    "clip-times-missing",
    "error",
    "time",
    title="an episode has no place in the videos of a camera",
    consequence="lerobot stops with a KeyError, or turns a missing number into an integer and fails",
    mend="write chunk, file, from_timestamp and to_timestamp for every episode and camera",
)
CLIP_ORDER = kind(
    "clip-order",
    "warning",
    "video",
    title="clips of a joined video lie in another order than their episodes",
    consequence="none where it is meant; but every writer puts them in order, and two episodes of one length "
    "whose places were exchanged look just so: each is trained with the other's pictures",
    mend="look at the first pictures of both episodes; exchange from_timestamp and to_timestamp if wrong",
)


@check("clips in joined videos (v3.0)", CLIP_TIMES, CLIP_TIMES_MISSING, CLIP_ORDER)
def clip_times(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    fps = evidence.fps
    if not evidence.is_v3 or fps is None:
        return
    missed = {(miss.camera, miss.episode) for miss in evidence.layout.misses}
    for camera, spans in evidence.clips.items():
        placed = {span.episode for span in spans if span.start_s is not None and span.stop_s is not None}
        for entry in evidence.episodes if spans else ():
            if entry.index is not None and entry.index not in placed and (camera, entry.index) not in missed:
                yield CLIP_TIMES_MISSING.fault(
                    f"episode {entry.index} has no file or times for {camera}",
                    where=Place(entry.file, entry.index, feature=camera),
                )
        by_file: dict[str, list[ClipSpan]] = {}
        for span in spans:
            if span.episode in placed and span.length is not None:
                by_file.setdefault(span.file, []).append(span)
        for own in by_file.values():
            in_order = sorted(own, key=lambda span: (span.start_s, span.episode))
            yield from _in_one_file(camera, in_order, fps)
            for before, after in pairwise(in_order):
                if after.episode < before.episode:
                    yield CLIP_ORDER.fault(
                        f"{camera}: the clip of episode {after.episode} comes after that of {before.episode}",
                        where=Place(after.file, after.episode, feature=camera),
                    )


def _in_one_file(camera: str, spans: list[ClipSpan], fps: float) -> Iterator[Fault]:
    before = 0
    for span in spans:
        assert span.length is not None and span.start_s is not None and span.stop_s is not None
        right = before / fps, (before + span.length) / fps
        before += span.length
        wrong = [
            f"{end}_timestamp is {got:.4f} s, not {want:.4f} s ({(got - want) * fps:+.2f} frames)"
            for end, got, want in (("from", span.start_s, right[0]), ("to", span.stop_s, right[1]))
            if abs(got - want) > TOLERANCE_S
        ]
        if wrong:
            yield CLIP_TIMES.fault(
                f"episode {span.episode} of {camera}: " + "; ".join(wrong),
                where=Place(span.file, span.episode, feature=camera),
                data={"from_s": span.start_s, "to_s": span.stop_s, "right_s": list(right)},
            )
