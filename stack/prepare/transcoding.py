"""Pictures encoded anew before anything is written: one file a clip, over all workers, kept over a kill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from stack.dataset.model import ClipRef
from stack.dataset.own_code import code_digest
from stack.dataset.pool import Pool
from stack.dataset.progress import Log, Progress
from stack.dataset.video import VideoInfo, probe
from stack.dataset.video_decode import decode_frames
from stack.dataset.video_encode import PSNR_MIN_DB
from stack.dataset.video_transcode import CRF, TranscodeJob, pictures, transcode_clip
from stack.dataset.write_check_video import check_ends
from stack.errors import WorkFailed
from stack.files import sha256_text
from stack.manifests.dataset import Transcode
from stack.prepare.blueprint import Plan

KEY_LENGTH = 24
DB_A_CRF = 0.5  # what one step of the encoder's quality costs, at most


def transcoded(made: Plan, settings: Transcode, scratch: Path, pool: Pool, log: Log) -> Plan:
    """The same plan over clips that were encoded anew, which the writer then joins by copying.

    Args:
        scratch: where the clips are kept until they are joined; what an earlier call left there is used.

    Raises:
        StackError: as `stack.dataset.video_transcode.transcode_clip`.
    """
    selection = made.selection
    clips = list(
        dict.fromkeys(s.episode.clips[camera] for camera in selection.cameras for s in selection.episodes)
    )
    jobs = [_job(clip, selection.fps, settings, scratch) for clip in clips]
    total = sum(clip.count for clip in clips)
    progress = Progress(log, "clips encoded", items=len(jobs), total=total, unit="frames")
    infos: dict[ClipRef, VideoInfo] = {}
    waiting = [job for job in jobs if not job.out.is_file()]
    for job in jobs:
        if job.out.is_file():
            progress.step(job.clip.count, is_reused=True)
    for job, _ in zip(waiting, pool.map(transcode_clip, waiting), strict=True):
        progress.step(job.clip.count)
    progress.end()
    for clip, info in zip(clips, pool.map(checked, jobs), strict=True):
        infos[clip] = info
    return _over(made, infos, settings)


def _job(clip: ClipRef, fps: float, settings: Transcode, scratch: Path) -> TranscodeJob:
    stat = clip.file.stat()
    source = f"{clip.file.resolve()} {stat.st_size} {stat.st_mtime_ns} {clip.start} {clip.count} {fps}"
    key = sha256_text(f"{source} {settings.model_dump_json()} {code_digest()}")[:KEY_LENGTH]
    return TranscodeJob(
        clip, scratch / f"{key}.mp4", fps, settings.size, settings.gop, settings.codec, settings.crf
    )


def checked(job: TranscodeJob) -> VideoInfo:
    """What a clip became, compared with its source, whoever encoded it.

    Raises:
        WorkFailed: it has another number of frames, or its first or last pictures are not the source's.
    """
    info = probe(job.out)
    where = f"{job.out.name}, made from {job.clip.file}, frame {job.clip.start}"
    if info.frames != job.clip.count:
        what = f"{job.clip.count} frames were meant, {info.frames} are there"
        raise WorkFailed("write-check-failed", what, where=where)

    def meant(numbers: Sequence[int]) -> list[NDArray[np.uint8]]:
        runs = [n for n in numbers if n - 1 not in numbers], [n + 1 for n in numbers if n + 1 not in numbers]
        clips = [ClipRef(job.clip.file, job.clip.start + a, b - a) for a, b in zip(*runs, strict=True)]
        return [_planes(frame) for clip in clips for frame in pictures(replace(job, clip=clip))]

    def got(numbers: Sequence[int]) -> list[NDArray[np.uint8]]:
        return [_planes(frame) for frame in decode_frames(job.out, numbers)]

    least_db = PSNR_MIN_DB - DB_A_CRF * max(0, job.crf - CRF)
    check_ends(job.clip.count, meant, got, least_db, where)
    return info


def _planes(frame: VideoFrame) -> NDArray[np.uint8]:
    return np.asarray(frame.to_ndarray(format="yuv420p"), dtype=np.uint8)


def _over(made: Plan, infos: Mapping[ClipRef, VideoInfo], settings: Transcode) -> Plan:
    selection = made.selection
    episodes = tuple(
        replace(
            s,
            episode=replace(
                s.episode,
                clips={
                    camera: ClipRef(infos[clip].file, 0, clip.count)
                    for camera, clip in s.episode.clips.items()
                },
            ),
        )
        for s in selection.episodes
    )
    shape = (settings.size, settings.size, 3)
    features = {
        name: replace(feature, shape=shape) if name in selection.cameras else feature
        for name, feature in selection.features.items()
    }
    note = (
        f"pictures are encoded anew: {settings.codec}, {settings.size}x{settings.size}, padded with black, "
        f"a key frame every {settings.gop} frames, crf {settings.crf}"
    )
    return replace(
        made,
        selection=replace(selection, episodes=episodes, features=features),
        infos={info.file: info for info in infos.values()},
        notes=(*made.notes, note),
    )
