"""The plan of a prepared dataset: every source read, every question asked, nothing written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stack.dataset.model import INDEX_FEATURES, Dataset
from stack.dataset.pool import Jobs, open_pool
from stack.dataset.read import read_dataset
from stack.dataset.selection import Recipe, Selected, Selection
from stack.errors import BadRequest, Exit, StackError
from stack.manifests import DatasetManifest, Loaded
from stack.manifests.dataset import Source
from stack.prepare.blueprint import Plan, SourcePlan
from stack.prepare.choose import (
    Part,
    choose_cameras,
    choose_episodes,
    choose_features,
    ranges,
    why_not_kept,
)
from stack.prepare.judge import check_clips, check_clocks, check_missing_cameras, check_read
from stack.prepare.problems import Problems
from stack.prepare.reconcile import (
    common_features,
    common_fps,
    common_robot_type,
    compare_camera,
)
from stack.prepare.scan import Scan, ScanJob, scan_episode

Log = Callable[[str], None]


def plan(
    loaded: Loaded[DatasetManifest],
    *,
    videos: str | None = None,
    jobs: Jobs = 1,
    log: Log = lambda _: None,
) -> Plan:
    """Read all sources and decide everything; nothing is written.

    Args:
        videos: overrides the manifest's.
        jobs: processes that read; not given takes all cores.

    Raises:
        StackError: with all problems that were found, each with the manifest lines that settle it.
            `prepare-expectation` (exit 1) where counts differ from the manifest's.
    """
    manifest = loaded.manifest
    where = str(loaded.file)
    mode = _video_mode(videos or manifest.videos, where)
    datasets = _read_sources(loaded, log)
    problems = Problems()
    fps = common_fps(datasets, where, problems)
    robot_type = common_robot_type(datasets, manifest, where, problems)
    sources, parts = _choose(datasets, manifest, where, problems)
    problems.raise_if_any()
    features, reconciled = common_features(parts, where, problems)
    problems.raise_if_any()
    tasks = _task_maps(datasets, manifest, where)
    recipes = {
        source.dataset.name: Recipe(
            {name: part.takes for name, part in parts[source.dataset.name].items()},
            tasks[source.dataset.name],
        )
        for source in sources
    }
    selected = _select(sources, manifest)
    log(f"checking the rows and videos of {len(selected)} episodes")
    work = [ScanJob(item, recipes[item.recipe], features, fps) for item in selected]
    with open_pool(jobs) as pool:
        scans = list(pool.map(scan_episode, work))
    sources = _judge(sources, manifest, selected, scans, where, problems)
    for camera in _cameras(sources):
        clips = [
            (item.episode.origin.dataset, item.episode.origin.episode, scan.videos[camera])
            for item, scan in zip(selected, scans, strict=True)
            if camera in scan.videos
        ]
        declared = {s.dataset.name: s.dataset.features[s.cameras[camera]] for s in sources}
        if clips:
            reconciled += compare_camera(camera, clips, declared, where, problems)
            info = clips[0][2]
            feature = next(iter(declared.values()))
            features[camera] = replace(
                feature, name=camera, dtype="video", shape=(info.height, info.width, 3)
            )
    problems.raise_if_any()
    selection = _finish(manifest, fps, robot_type, features, selected, scans, recipes)
    infos = {info.file: info for scan in scans for info in scan.videos.values()}
    notes = _notes(sources, selected, scans)
    made = Plan(
        manifest.name,
        selection,
        sources,
        tuple(reconciled),
        {a: b for a, b in manifest.tasks.items() if a != b},
        mode,
        infos,
        notes,
    )
    _check_expected(made, manifest, where)
    return made


def _video_mode(videos: str, where: str) -> str:
    if videos == "transcode":
        raise BadRequest(
            "prepare-transcode-not-available",
            "videos: transcode is not available yet; pictures are copied, never encoded again",
            where=where,
            do="choose videos: join, or videos: link",
        )
    if videos not in ("join", "link"):
        raise BadRequest("prepare-videos-unknown", f"videos is join or link, not '{videos}'", where=where)
    return videos


def _read_sources(loaded: Loaded[DatasetManifest], log: Log) -> list[Dataset]:
    problems = Problems()
    datasets: list[Dataset] = []
    for source in loaded.manifest.sources:
        root = loaded.path(source.path)
        try:
            dataset = read_dataset(root, name=source.name or Path(source.path).name)
        except StackError as error:
            problems.add(error)
            continue
        log(
            f"read {dataset.name}: {dataset.version}, {len(dataset.episodes)} episodes, "
            f"{dataset.frames} frames"
        )
        datasets.append(dataset)
    problems.raise_if_any()
    names = [dataset.name for dataset in datasets]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise BadRequest(
            "prepare-source-names",
            f"two sources are called '{doubled[0]}', so episodes could not be told apart",
            where=str(loaded.file),
            do=f"give one of them another name: name: {doubled[0]}-2",
        )
    return datasets


def _choose(
    datasets: Sequence[Dataset], manifest: DatasetManifest, where: str, problems: Problems
) -> tuple[tuple[SourcePlan, ...], dict[str, dict[str, Part]]]:
    features, cameras, reasons = _shared(datasets, manifest)
    sources: list[SourcePlan] = []
    parts: dict[str, dict[str, Part]] = {}
    for dataset, source in zip(datasets, manifest.sources, strict=True):
        try:
            chosen = choose_episodes(dataset, source, where)
            parts[dataset.name] = choose_features(dataset, manifest, features, where)
            renamed = choose_cameras(dataset, manifest, cameras, where)
        except StackError as error:
            problems.add(error)
            continue
        used = {take.feature.name for part in parts[dataset.name].values() for take in part.takes}
        used |= set(renamed.values())
        dropped = {
            name: reasons.get(name, "the manifest does not keep it")
            for name in dataset.features
            if name not in used and name not in INDEX_FEATURES
        }
        sources.append(SourcePlan(dataset, source.path, chosen, renamed, dropped))
    return tuple(sources), parts


def _shared(
    datasets: Sequence[Dataset], manifest: DatasetManifest
) -> tuple[list[str], list[str], dict[str, str]]:
    """Features and cameras that all sources share and that can be kept, and why the others are not."""
    reasons: dict[str, str] = {}
    features: list[str] = []
    cameras: list[str] = []
    for name in dict.fromkeys(name for dataset in datasets for name in dataset.features):
        if name in INDEX_FEATURES:
            continue
        missing = [dataset.name for dataset in datasets if name not in dataset.features]
        is_camera = any(d.features[name].is_camera for d in datasets if name in d.features)
        asked = manifest.cameras if is_camera else manifest.features
        if asked is not None:
            reasons[name] = "the manifest does not keep it"
            continue
        unfit = [why_not_kept(d.features[name]) for d in datasets if name in d.features]
        reason = None if is_camera else next((text for text in unfit if text is not None), None)
        if missing:
            reasons[name] = f"not in {', '.join(missing)}"
        elif reason is not None:
            reasons[name] = reason
        else:
            (cameras if is_camera else features).append(name)
    return features, cameras, reasons


def _task_maps(
    datasets: Sequence[Dataset], manifest: DatasetManifest, where: str
) -> dict[str, dict[int, str]]:
    known = {text for dataset in datasets for text in dataset.tasks.values()}
    known |= {text for dataset in datasets for episode in dataset.episodes for text in episode.tasks}
    if unknown := [text for text in manifest.tasks if text not in known]:
        raise BadRequest(
            "prepare-no-such-task",
            f"tasks: no source has the task text '{unknown[0]}'; there are: "
            + "; ".join(f"'{text}'" for text in sorted(known)),
            where=where,
            do="copy the text exactly as it was delivered",
        )
    return {
        dataset.name: {i: manifest.tasks.get(text, text) for i, text in dataset.tasks.items()}
        for dataset in datasets
    }


def _select(sources: Sequence[SourcePlan], manifest: DatasetManifest) -> list[Selected]:
    selected: list[Selected] = []
    for source in sources:
        for episode in source.episodes:
            clips = {out: episode.clips[c] for out, c in source.cameras.items() if c in episode.clips}
            texts = tuple(manifest.tasks.get(text, text) for text in episode.tasks)
            moved = replace(episode, index=len(selected), clips=clips, tasks=texts)
            selected.append(Selected(moved, source.dataset.name))
    return selected


def _judge(
    sources: Sequence[SourcePlan],
    manifest: DatasetManifest,
    selected: Sequence[Selected],
    scans: Sequence[Scan],
    where: str,
    problems: Problems,
) -> tuple[SourcePlan, ...]:
    judged: list[SourcePlan] = []
    asked = {source.dataset.name: given for source, given in zip(sources, manifest.sources, strict=True)}
    for source in sources:
        name = source.dataset.name
        own = [(s, scan) for s, scan in zip(selected, scans, strict=True) if s.recipe == name]
        for _, scan in own:
            for problem in scan.problems:
                problems.add(problem)
        check_read(source.dataset, where, problems)
        decisions: Source = asked[name]
        gone = check_missing_cameras(source.dataset, source.cameras, own, decisions, where, problems)
        check_clips(source.dataset, own, problems)
        worst = check_clocks(source.dataset, own, decisions, where, problems)
        dropped = {**source.dropped, **{source.cameras[c]: "no video file holds it" for c in gone}}
        judged.append(replace(source, dropped=dropped, restamped_s=worst))
        for camera in gone:
            # A camera that one source lacks cannot be a camera of the whole.
            judged = [_without_camera(item, camera, name) for item in judged]
    gone_anywhere = {c for s in judged for c in set(sources[0].cameras) - set(s.cameras)}
    return tuple(
        replace(s, cameras={c: v for c, v in s.cameras.items() if c not in gone_anywhere}) for s in judged
    )


def _without_camera(source: SourcePlan, camera: str, lacking: str) -> SourcePlan:
    if camera not in source.cameras:
        return source
    dropped = dict(source.dropped)
    dropped.setdefault(source.cameras[camera], f"{lacking} has no video file for it")
    return replace(source, cameras={c: v for c, v in source.cameras.items() if c != camera}, dropped=dropped)


def _cameras(sources: Sequence[SourcePlan]) -> tuple[str, ...]:
    return tuple(sources[0].cameras)


def _finish(
    manifest: DatasetManifest,
    fps: float,
    robot_type: str | None,
    features: Mapping[str, Any],
    selected: Sequence[Selected],
    scans: Sequence[Scan],
    recipes: Mapping[str, Recipe],
) -> Selection:
    cameras = [name for name, feature in features.items() if feature.is_camera]
    episodes = []
    for item, scan in zip(selected, scans, strict=True):
        clips = {camera: item.episode.clips[camera] for camera in cameras}
        episodes.append(replace(item, episode=replace(item.episode, tasks=scan.tasks, clips=clips)))
    tasks = tuple(dict.fromkeys(text for scan in scans for text in scan.tasks))
    return Selection(manifest.name, fps, robot_type, features, tuple(episodes), recipes, tasks)


def _notes(
    sources: Sequence[SourcePlan], selected: Sequence[Selected], scans: Sequence[Scan]
) -> tuple[str, ...]:
    notes = [f"{s.dataset.name}: {text}" for s in sources for _, text in s.dataset.notes]
    derived: dict[tuple[str, str], list[int]] = {}
    for item, scan in zip(selected, scans, strict=True):
        for text in scan.derived:
            derived.setdefault((item.recipe, text), []).append(item.episode.origin.episode)
    for (name, text), episodes in derived.items():
        notes.append(f"{name}: {text} in episodes {ranges(episodes)}; it is derived")
    for source in sources:
        if source.restamped_s is not None:
            notes.append(
                f"{source.dataset.name}: timestamps replaced by frame_index / fps; "
                f"they were off by up to {source.restamped_s:.3f} s"
            )
    return tuple(notes)


def _check_expected(made: Plan, manifest: DatasetManifest, where: str) -> None:
    expect, selection = manifest.expect, made.selection
    pairs: list[tuple[str, Any, Any]] = [
        ("episodes", expect.episodes, len(selection.episodes)),
        ("frames", expect.frames, selection.frames),
        ("fps", expect.fps, selection.fps),
        ("cameras", expect.cameras, len(selection.cameras)),
    ]
    pairs += [(f"widths.{n}", width, made.widths.get(n, "none")) for n, width in expect.widths.items()]
    wrong = [f"{key}: {a} expected, {b} planned" for key, a, b in pairs if a is not None and a != b]
    if wrong:
        raise StackError(
            "prepare-expectation",
            "the sources do not give what the manifest expects: " + "; ".join(wrong),
            where=where,
            do="check the deliveries; or, if they are right, correct 'expect'",
            exit=Exit.NOT_GOOD,
        )
