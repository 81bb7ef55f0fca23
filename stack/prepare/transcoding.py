"""Pictures encoded anew before anything is written: one file a clip, over all workers, kept over a kill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from stack import __version__
from stack.dataset.model import ClipRef
from stack.dataset.pool import Pool
from stack.dataset.progress import Log, Progress
from stack.dataset.video import VideoInfo
from stack.dataset.video_transcode import TranscodeJob, transcode_clip
from stack.files import sha256_text
from stack.manifests.dataset import Transcode
from stack.prepare.blueprint import Plan

KEY_LENGTH = 24


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
    for clip, info in zip(clips, pool.map(_info, [job.out for job in jobs]), strict=True):
        infos[clip] = info
    return _over(made, infos, settings)


def _job(clip: ClipRef, fps: float, settings: Transcode, scratch: Path) -> TranscodeJob:
    stat = clip.file.stat()
    source = f"{clip.file.resolve()} {stat.st_size} {stat.st_mtime_ns} {clip.start} {clip.count} {fps}"
    key = sha256_text(f"{source} {settings.model_dump_json()} {__version__}")[:KEY_LENGTH]
    return TranscodeJob(
        clip, scratch / f"{key}.mp4", fps, settings.size, settings.gop, settings.codec, settings.crf
    )


def _info(file: Path) -> VideoInfo:
    from stack.dataset.video import probe

    return probe(file)


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
