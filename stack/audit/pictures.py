"""Small pictures of the places that faults name, decoded from the videos."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stack.audit.catalogue import load_kinds
from stack.audit.deadline import TimeUp, deadline
from stack.audit.measures import ClipAt
from stack.audit.report import AuditReport
from stack.audit.shelter import DECODE_BYTES_A_SECOND, reading
from stack.errors import StackError
from stack.faults import SEVERITIES, Fault, Place

WIDTH_PIXELS = 240
QUALITY = 5  # MJPEG's quantiser, 2 best to 31 worst
MOST = 36
MOST_BYTES = 1_500_000
MOST_S = 20.0  # for all pictures; one may lie thousands of frames behind its key frame
ONE_S = 10.0
PLACES = 2  # of a fault: the first ones are the first or the worst, as its check sorts them
# Around the place: the last good picture, the place itself, and one further on.
SHOWN_GROUPS = ("rows", "time", "video")
SHOWN_CODES = frozenset({"channel-extreme-scale", "channel-rare-binary"})
NEIGHBOURS = {
    "video-frozen": (-2, 0, 10),
    "video-black": (-1, 0, 2),
    "video-one-colour": (-1, 0, 2),
    "video-repeated": (-1, 0, 5),
    "clip-picture-wrong": (-1, 0, 1, 2),
    "timestamps-not-rising": (-1, 0, 1),
}


@dataclass(frozen=True)
class Picture:
    """One frame. `jpeg` is None where it could not be decoded, `why` then says so."""

    camera: str
    episode: int
    frame: int
    jpeg: bytes | None
    why: str = ""

    @property
    def uri(self) -> str:
        return "data:image/jpeg;base64," + base64.b64encode(self.jpeg or b"").decode()


@dataclass(frozen=True)
class Strip:
    """The pictures of one place of a fault."""

    fault: Fault
    place: Place
    pictures: tuple[Picture, ...]


def strips(report: AuditReport, root: Path) -> tuple[list[Strip], int]:
    """Pictures of faults' places, errors first, and how many places were left out for size."""
    found: list[Strip] = []
    left_out = taken = size = 0
    until = time.monotonic() + MOST_S
    for fault, place in _places(report):
        wanted = _wanted(report, fault, place)
        if not wanted:
            continue
        if taken + len(wanted) > MOST or size > MOST_BYTES or time.monotonic() > until:
            left_out += 1
            continue
        pictures = tuple(_take(root, *one) for one in wanted)
        taken += len(pictures)
        size += sum(len(picture.jpeg or b"") for picture in pictures)
        found.append(Strip(fault, place, pictures))
    return found, left_out


def _places(report: AuditReport) -> Iterator[tuple[Fault, Place]]:
    seen: set[tuple[int, int | None]] = set()
    # First each fault's first place, then the second ones: no kind of fault crowds out another.
    for turn in range(PLACES):
        for severity in SEVERITIES[:2]:
            for fault in report.faults:
                places = [p for p in (fault.places or (fault.where,)) if p.episode is not None]
                if (
                    fault.severity == severity
                    and _shows(fault)
                    and turn < len(places)
                    and places[turn].episode is not None
                ):
                    place = places[turn]
                    key = (place.episode or 0, place.frame)
                    if key not in seen or fault.code in NEIGHBOURS:
                        seen.add(key)
                        yield fault, place


def _shows(fault: Fault) -> bool:
    """Whether a picture says anything about it."""
    kind = load_kinds().get(fault.code)
    return fault.code in SHOWN_CODES or (kind is not None and kind.group in SHOWN_GROUPS)


def _wanted(report: AuditReport, fault: Fault, place: Place) -> list[tuple[str, int, int, ClipAt, int]]:
    """(camera, episode, frame in it, clip, frame in the file) of what to show; empty without a video."""
    clips = report.measures.clips
    cameras = (
        [place.feature] if place.feature in clips else [c for c in clips if place.episode in clips[c]][:1]
    )
    if place.frame is None and fault.code != "video-undecodable" and place.feature not in clips:
        return []  # a fault of the episode as a whole has no frame to show
    found = []
    for camera in cameras:
        clip = clips[camera].get(place.episode if place.episode is not None else -1)
        if clip is None:
            continue
        middle = place.frame if place.frame is not None else 0
        for step in NEIGHBOURS.get(fault.code, (0,)):
            frame = middle + step
            # At a border the picture before the clip belongs to the file's clip before.
            least = -clip.start if fault.code == "clip-picture-wrong" else 0
            if least <= frame < clip.count:
                found.append((camera, place.episode or 0, frame, clip, clip.start + frame))
    return found


def _take(root: Path, camera: str, episode: int, frame: int, clip: ClipAt, at: int) -> Picture:
    from stack.dataset.video import decode

    try:
        with deadline(ONE_S), reading(root / clip.file, bytes_a_second=DECODE_BYTES_A_SECOND):
            (picture,) = decode(root / clip.file, [at])
        return Picture(camera, episode, frame, to_jpeg(picture))
    except TimeUp:
        why = f"not decoded within {ONE_S:g} s; it lies far behind a key frame"
        return Picture(camera, episode, frame, None, why)
    except StackError as error:
        return Picture(camera, episode, frame, None, error.what)
    except Exception as error:  # damaged files find new ways to fail inside the decoder
        return Picture(camera, episode, frame, None, f"{type(error).__name__}: {error}")


def to_jpeg(picture: NDArray[np.uint8]) -> bytes:
    """(H, W, 3) uint8 RGB as a JPEG at most `WIDTH_PIXELS` wide."""
    import av

    height, width = picture.shape[:2]
    wide = min(WIDTH_PIXELS, width) // 2 * 2 or 2
    high = max(2, round(height * wide / width) // 2 * 2)
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    frame = frame.reformat(width=wide, height=high, format="yuvj420p", interpolation="AREA")
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height, encoder.pix_fmt = wide, high, "yuvj420p"
    encoder.time_base = Fraction(1, 25)
    encoder.qmin = encoder.qmax = QUALITY
    frame.pts = 0
    return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])
