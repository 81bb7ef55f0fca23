"""The pieces of work that a dataset is written by, made from its plan before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from stack.dataset.model import ClipRef
from stack.dataset.pictures import PictureJob, sample_pictures
from stack.dataset.selection import Recipe, Selected, Selection
from stack.dataset.stats import CameraSample, Stats, sample_camera
from stack.dataset.stats_stored import Evidence
from stack.dataset.stats_table import StatsTable, take
from stack.dataset.video import VideoInfo
from stack.dataset.write_files import (
    DataDone,
    DataJob,
    VideoDone,
    VideoJob,
    write_data_file,
    write_video_file,
)
from stack.dataset.write_plan import FilePlan, VideoFile, Videos
from stack.dataset.write_resume import Work, keyed

Samples: TypeAlias = Mapping[tuple[str, int], Evidence]
NOWHERE = Path()  # each attempt gets a folder of its own


@dataclass(frozen=True)
class Works:
    """`sampled`: (camera, episode index) of each of `samples`."""

    data: list[Work[DataDone]]
    videos: list[Work[VideoDone]]
    samples: list[Work[CameraSample]]
    sampled: list[tuple[str, int]]


@dataclass(frozen=True)
class Made:
    """What the works gave: files in the plan's order; samples by camera and episode index.

    `rows_stats` gives the statistics of the episodes of a data file, by its number in the plan.
    """

    data: list[DataDone]
    videos: list[VideoDone]
    samples: Samples
    rows_stats: Callable[[int], StatsTable]

    def infos(self, plan: FilePlan) -> dict[str, list[VideoInfo]]:
        """Camera -> what its files are."""
        infos: dict[str, list[VideoInfo]] = {}
        for entry, movie in zip(plan.videos, self.videos, strict=True):
            infos.setdefault(entry.camera, []).append(movie.info)
        return infos

    def stats(self, selection: Selection, plan: FilePlan) -> Iterator[dict[str, Stats]]:
        """Feature -> statistics, of each episode in the plan's order; those of one data file are held."""
        cameras = (*selection.cameras, *selection.pictures)
        for number, entry in enumerate(plan.data):
            table = self.rows_stats(number)
            for place, selected in enumerate(entry.episodes):
                index = selected.episode.index
                own = {camera: self.samples[camera, index].stats() for camera in cameras}
                yield {**take(table, place), **own}
            del table  # before the next one is read


def plan_works(selection: Selection, plan: FilePlan, videos: Videos) -> Works:
    """All works of a plan, with their keys."""
    clips = _clip_works(selection)
    pictures = _picture_works(selection)
    return Works(
        keyed(_data_works(selection, plan)),
        keyed(_video_works(selection, plan, videos)),
        keyed([*clips.values(), *pictures.values()]),
        [*clips, *pictures],
    )


def _data_works(selection: Selection, plan: FilePlan) -> list[Work[DataDone]]:
    works = []
    for entry in plan.data:
        recipes = _used(selection, entry.episodes)
        # What becomes of cameras' statistics is none of a data file's business.
        bare = replace(entry, episodes=tuple(replace(s, kept={}) for s in entry.episodes))
        job = DataJob(NOWHERE, bare, selection.columns, recipes, selection.tasks, selection.fps)
        frames = sum(selected.episode.length for selected in entry.episodes)
        works.append(Work(write_data_file, job, entry.path, frames, _label(entry.episodes)))
    return works


def _used(selection: Selection, episodes: tuple[Selected, ...]) -> dict[str, Recipe]:
    keys = {selected.recipe for selected in episodes}
    return {key: recipe for key, recipe in selection.recipes.items() if key in keys}


def _video_works(selection: Selection, plan: FilePlan, videos: Videos) -> list[Work[VideoDone]]:
    by_index = {selected.episode.index: selected for selected in selection.episodes}
    works = []
    for entry in plan.videos:
        label = _label(tuple(by_index[index] for index in entry.episodes))
        job = VideoJob(NOWHERE, entry, selection.fps, videos)
        frames = sum(clip.count for clip in entry.clips)
        labels = _labels(entry, by_index)
        works.append(Work(write_video_file, job, entry.path, frames, f"{entry.camera}, {label}", labels))
    return works


def _labels(entry: VideoFile, by_index: Mapping[int, Selected]) -> dict[str, str]:
    """Source file -> camera and episodes, for errors of one clip among many."""
    groups: dict[str, list[Selected]] = {}
    for index, clip in zip(entry.episodes, entry.clips, strict=True):
        groups.setdefault(str(clip.file), []).append(by_index[index])
    return {file: f"{entry.camera}, {_label(tuple(group))}" for file, group in groups.items()}


def _clip_works(selection: Selection) -> dict[tuple[str, int], Work[CameraSample]]:
    works = {}
    for camera in selection.cameras:
        for selected in selection.episodes:
            if camera in selected.kept:
                continue
            clip: ClipRef = selected.episode.clips[camera]
            label = f"{camera}, {_label((selected,))}"
            works[camera, selected.episode.index] = Work(sample_camera, clip, None, clip.count, label)
    return works


def _picture_works(selection: Selection) -> Mapping[tuple[str, int], Work[CameraSample]]:
    works = {}
    for name in selection.pictures:
        for selected in selection.episodes:
            job = PictureJob(selected.episode, selection.source_feature(selected, name))
            label = f"{name}, {_label((selected,))}"
            frames = selected.episode.length
            works[name, selected.episode.index] = Work(sample_pictures, job, None, frames, label)
    return works


def _label(episodes: tuple[Selected, ...]) -> str:
    """The source's own numbers: those are what a person can look up."""
    first, last = episodes[0].episode.origin, episodes[-1].episode.origin
    if len(episodes) == 1:
        return f"episode {first.episode} of '{first.dataset}'"
    return (
        f"one of episode {first.episode} of '{first.dataset}' to episode {last.episode} of '{last.dataset}'"
    )
