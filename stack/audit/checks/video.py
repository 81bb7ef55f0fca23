"""Video files against rows and info.json, from packets alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stack.audit.kinds import Case, check, kind
from stack.audit.tracks import is_mp4, video_tracks
from stack.dataset.model import Feature
from stack.dataset.video import VideoInfo
from stack.faults import Fault, Place

TOLERANCE_S = 1e-4  # lerobot's tolerance_s
KEY_DISTANCE_FRAMES = 30
LENGTH = kind(
    "video-length-differs",
    "error",
    "video",
    title="a video has more or fewer frames than the rows it belongs to",
    consequence="pictures and actions no longer belong together, and reading past the end stops the training",
    mend="exclude the episode; where rows were dropped, deliver video and rows of the same take",
)
CODEC = kind(
    "video-codec-differs",
    "warning",
    "video",
    title="codec or pixel format are not as info.json says",
    consequence="tools that trust info.json choose the wrong decoder or refuse a merge",
    mend="write what the file holds into info.json; `stack prepare` reads it from the file",
)
SIZE = kind(
    "video-size-differs",
    "warning",
    "video",
    title="pictures have another size than info.json says",
    consequence="the policy is built for another shape; where sizes differ between files, batches fail",
    mend="write the true size into info.json; where files differ, transcode them to one size",
)
RATE = kind(
    "video-fps-differs",
    "error",
    "time",
    title="a video runs at another rate than the dataset",
    consequence="rows look up their picture by time and find another frame's, or none",
    mend="correct fps in info.json if that is wrong; with one frame a row, `stack prepare` restamps",
)
NOT_CONSTANT = kind(
    "video-not-constant-rate",
    "error",
    "time",
    title="frames of a video are not evenly spaced",
    consequence="lerobot finds no frame within its tolerance of 0.1 ms and stops",
    mend="`stack prepare` copies the pictures and gives frame n the time n / fps",
)
STARTS_LATE = kind(
    "video-start-not-zero",
    "error",
    "time",
    title="the first frame of a video is not at 0 s",
    consequence="every row finds the picture of another frame, or none within tolerance",
    mend="`stack prepare` copies the pictures and gives frame n the time n / fps",
)
KEYS_FAR = kind(
    "key-frames-far-apart",
    "note",
    "video",
    title="key frames are far apart",
    consequence="one random picture costs the decoding of all frames since the last key frame: slow loading",
    mend="transcode with a key frame every 2 frames if loading limits the training",
)
OPEN = kind(
    "video-open-gop",
    "error",
    "video",
    title="pictures cannot be fetched one by one: groups of pictures are open",
    consequence="lerobot seeks to the key frame before the picture that it wants; these are built from "
    "pictures before that key frame, or refreshed part by part from there on, so it gets another picture and "
    "stops, or a wrong one, at a random step of the training; `stack train` goes back further, slowly",
    mend="`stack prepare` with `videos: transcode`; by hand, with closed groups: "
    "`ffmpeg -i IN.mp4 -c:v libx264 -g 2 -bf 0 -crf 18 OUT.mp4`",
)
TURNED = kind(
    "video-turned",
    "warning",
    "video",
    title="a video asks to be shown turned or mirrored",
    consequence="decoders disagree: PyAV and torchcodec before 0.11 give the pictures as stored, torchcodec "
    "from 0.11 on turns them. The policy is trained on other pictures than the robot's camera gives it, or "
    "on two kinds of them",
    mend="find out which way the camera hangs, then encode the pictures upright and without the mark: "
    "`ffmpeg -i IN.mp4 OUT.mp4` (it turns them), or take off the mark alone: "
    "`ffmpeg -display_rotation 0 -i IN.mp4 -c copy OUT.mp4`",
)
NOT_MP4 = kind(
    "video-not-mp4",
    "warning",
    "video",
    title="a file called .mp4 is of another kind inside",
    consequence="some decoders go by the contents and read it, others by the name and stop; a text that "
    "names other files shows the pictures of those",
    mend="`stack prepare` writes MP4; by hand: `ffmpeg -i IN.mp4 -c copy OUT.mp4`",
)
SEVERAL = kind(
    "video-several-tracks",
    "warning",
    "video",
    title="a video file holds more than one video track",
    consequence="decoders disagree on which one is meant: lerobot with PyAV takes the first, torchcodec the "
    "best; one of them may be a cover picture or another camera",
    mend="keep the right track only: `ffmpeg -i IN.mp4 -map 0:v:0 -c copy OUT.mp4` (0:v:1 is the second)",
)
_CODECS = {
    "mp4v": "mpeg4",
    "h265": "hevc",
    "avc1": "h264",
    "avc": "h264",
    "libsvtav1": "av1",
    "libx264": "h264",
}


@check("frames of each video against rows", LENGTH)
def video_lengths(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    for camera, spans in evidence.clips.items():
        rows: dict[str, int] = {}
        episodes: dict[str, list[int]] = {}
        for span in spans:
            if span.length is not None:
                rows[span.file] = rows.get(span.file, 0) + span.length
                episodes.setdefault(span.file, []).append(span.episode)
        for file, count in rows.items():
            video = evidence.videos.get(file)
            if video is None or video.frames == count:
                continue
            own = episodes[file]
            of = f"episode {own[0]} has" if len(own) == 1 else f"episodes {min(own)} to {max(own)} have"
            yield LENGTH.fault(
                f"{file} has {video.frames} frames; {of} {count} rows ({video.frames - count:+d})",
                where=Place(file, own[0] if len(own) == 1 else None, feature=camera),
                data={"frames": video.frames, "rows": count, "episodes": own[:50]},
            )


@check("videos against info.json", CODEC, SIZE)
def video_declared(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    for camera, file, video in _each(case):
        feature = evidence.features[camera]
        place = Place(file, feature=camera)
        stated = _stated(feature)
        codec = stated.get("video.codec")
        if isinstance(codec, str) and codec_of(codec) != video.codec:
            yield CODEC.fault(f"info.json says {codec}; the file is {video.codec}", where=place)
        pix_fmt = stated.get("video.pix_fmt")
        if isinstance(pix_fmt, str) and video.pix_fmt and pix_fmt != video.pix_fmt:
            yield CODEC.fault(f"info.json says {pix_fmt}; the file is {video.pix_fmt}", where=place)
        size = declared_size(feature)
        if size is not None and size != (video.width, video.height):
            yield SIZE.fault(
                f"info.json says {size[0]}x{size[1]}; the file is {video.width}x{video.height}", where=place
            )


@check("headers of each video", TURNED, SEVERAL, NOT_MP4)
def video_headers(case: Case) -> Iterator[Fault]:
    turns: dict[str, dict[str, str | None]] = {}
    for camera, file, _ in _each(case):
        if not is_mp4(case.evidence.root / file):
            yield NOT_MP4.fault(f"{file} is no MP4 inside", where=Place(file, feature=camera))
        tracks = video_tracks(case.evidence.root / file)
        turns.setdefault(camera, {})[file] = tracks.turn if tracks else None
        if tracks and tracks.count > 1:
            place = Place(file, feature=camera)
            yield SEVERAL.fault(f"{file} has {tracks.count} video tracks", where=place)
    for camera, of_files in turns.items():
        turned = {file: turn for file, turn in of_files.items() if turn}
        if not turned:
            continue
        ways, first = ", ".join(sorted(set(turned.values()))), next(iter(turned))
        # Of all files it is the camera's matter; of some it makes their episodes differ from the others.
        some = tuple(Place(file, feature=camera) for file in turned) if len(turned) < len(of_files) else ()
        yield TURNED.fault(
            f"{len(turned)} of {len(of_files)} files of {camera} are to be shown {ways}, such as {first}",
            where=some[0] if some else Place(feature=camera),
            places=some,
            count=len(turned),
        )


def codec_of(stated: str) -> str:
    """The canonical name of a codec that info.json may call otherwise."""
    return _CODECS.get(stated, stated)


def _each(case: Case) -> Iterator[tuple[str, str, VideoInfo]]:
    """(camera, file, facts), each file once."""
    evidence = case.evidence
    for camera, spans in evidence.clips.items():
        for file in dict.fromkeys(span.file for span in spans):
            if file in evidence.videos:
                yield camera, file, evidence.videos[file]


def _stated(feature: Feature) -> Mapping[str, Any]:
    """The camera's entry about its videos; old sets call it `video_info`."""
    for key in ("info", "video_info"):
        entry = feature.raw.get(key)
        if isinstance(entry, dict):
            return entry
    return {}


def declared_size(feature: Feature) -> tuple[int, int] | None:
    """(width, height) as the shape says, channels first or last."""
    if len(feature.shape) != 3:
        return None
    first, second, third = feature.shape
    channels_first = first in (1, 3, 4) and third not in (1, 3, 4)
    return (third, second) if channels_first else (second, first)


@check("frame times of each video", RATE, NOT_CONSTANT, STARTS_LATE)
def video_times(case: Case) -> Iterator[Fault]:
    fps = case.evidence.fps
    for camera, file, video in _each(case) if fps is not None else ():
        assert fps is not None
        times = np.array(video.pts, np.float64) * float(video.time_base)
        place = Place(file, feature=camera)
        if abs(times[0]) > TOLERANCE_S:
            yield STARTS_LATE.fault(f"the first frame is at {times[0]:.4f} s", where=place)
        off = _off(times, fps)
        if len(times) < 2 or off.max() <= TOLERANCE_S:
            continue
        own_rate = (len(times) - 1) / float(times[-1] - times[0])
        even = _off(times, own_rate).max() <= max(TOLERANCE_S, float(video.time_base))
        if even and abs(own_rate / fps - 1) * (len(times) - 1) >= 1:
            yield RATE.fault(f"{own_rate:.3f} frames a second; info.json says {fps:g}", where=place)
        else:
            frame = int(off.argmax())
            yield NOT_CONSTANT.fault(
                f"frame {frame} is {off[frame] * 1000:.2f} ms from its place at {fps:g} fps"
                f" (time base {video.time_base})",
                where=Place(file, frame=frame, feature=camera),
                data={"worst_s": float(off[frame])},
            )


def _off(times: NDArray[np.float64], fps: float) -> NDArray[np.float64]:
    return np.asarray(np.abs(times - times[0] - np.arange(len(times)) / fps))


@check("groups of pictures", OPEN)
def video_groups(case: Case) -> Iterator[Fault]:
    for camera, file, video in _each(case):
        if not video.leading:
            continue
        frame = video.leading[0]
        yield OPEN.fault(
            f"{len(video.leading)} of {video.frames} frames of {file} are built from pictures before the key "
            f"frame that a loader begins at, the first of them frame {frame}",
            where=Place(file, frame=frame, feature=camera),
            count=len(video.leading),
            data={"frames": list(video.leading[:50])},
        )


@check("distance of key frames", KEYS_FAR)
def video_keys(case: Case) -> Iterator[Fault]:
    for camera in case.evidence.clips:
        farthest: tuple[int, str] = (0, "")
        files = 0
        for _, file, video in (item for item in _each(case) if item[0] == camera):
            ends = [*video.key_frames, video.frames]
            distance = max((after - before for before, after in pairwise(ends)), default=video.frames)
            files += distance > KEY_DISTANCE_FRAMES
            farthest = max(farthest, (distance, file))
        if files:
            yield KEYS_FAR.fault(
                f"up to {farthest[0]} frames of {camera} lie between two key frames",
                where=Place(farthest[1], feature=camera),
                count=files,
                data={"frames": farthest[0]},
            )
