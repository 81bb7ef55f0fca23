"""The plan of a prepared dataset: every source read, every question asked, nothing written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stack.dataset.model import Dataset
from stack.dataset.pool import Jobs, open_pool
from stack.dataset.read import read_dataset
from stack.dataset.selection import Recipe, Selected, Selection
from stack.dataset.stats_stored import KeptCamera, Raw, stored_camera_stats
from stack.dataset.write_plan import Caps
from stack.errors import BadRequest, Exit, StackError
from stack.manifests import DatasetManifest, Loaded
from stack.manifests.dataset import Source
from stack.prepare.blueprint import Plan, SourcePlan
from stack.prepare.camera_plan import camera_feature, fill_cameras
from stack.prepare.episodes import LeftOut
from stack.prepare.judge import check_clips, check_clocks, check_missing_cameras, check_read, check_texts
from stack.prepare.notes import left_out_notes, plan_notes
from stack.prepare.problems import Problems, Settles
from stack.prepare.reconcile import (
    common_features,
    common_fps,
    common_robot_type,
)
from stack.prepare.scan import Scan, ScanJob, Shared, scan_episode
from stack.prepare.source_plan import choose, recipe_of, task_maps

Log = Callable[[str], None]
SCANS_TOGETHER = 8


def plan(
    loaded: Loaded[DatasetManifest],
    *,
    videos: str | None = None,
    jobs: Jobs = 1,
    log: Log = lambda _: None,
    scratch: Path | None = None,
) -> Plan:
    """Read all sources and decide everything; nothing is written.

    Args:
        videos: overrides the manifest's.
        jobs: processes that read; not given takes all cores.
        scratch: a folder for pictures that are made up, which must stay until the plan is written. Not given:
            they are made and thrown away, so that such a plan can be read and not written.

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
    sources, parts = choose(datasets, manifest, where, problems)
    problems.raise_if_any()
    features, reconciled = common_features(parts, where, problems, manifest.cast)
    problems.raise_if_any()
    tasks = task_maps(datasets, manifest, where)
    recipes = {s.dataset.name: recipe_of(s, parts[s.dataset.name], tasks[s.dataset.name]) for s in sources}
    selected = _select(sources, manifest)
    log(f"checking the rows and videos of {len(selected)} episodes")
    stored = _stored(sources, manifest, mode)
    is_stored = stored is not None
    work = [
        ScanJob(
            item,
            recipes[item.recipe],
            features,
            fps,
            None if stored is None else stored[n],
            mode == "transcode",
        )
        for n, item in enumerate(selected)
    ]
    with open_pool(jobs) as pool:
        shared = Shared()
        scans = [
            shared.scan(scan, item)
            for scan, item in zip(
                pool.map(scan_episode, work, together=SCANS_TOGETHER), selected, strict=True
            )
        ]
    del work, stored
    sources = _judge(sources, manifest, selected, scans, where, problems)
    for camera in _cameras(sources):
        feature = camera_feature(
            camera,
            sources,
            selected,
            scans,
            where,
            problems,
            reconciled,
            is_copied=mode != "transcode",
            is_joined=mode == "join",
        )
        if feature is not None:
            features[camera] = feature
    problems.raise_if_any()
    infos = {info.file: info for scan in scans for info in scan.videos.values()}
    with ExitStack() as stack:
        place = scratch or Path(stack.enter_context(TemporaryDirectory(prefix="stack-black-")))
        selected, filled = fill_cameras(features, selected, scans, fps, place)
    infos |= {entry.info.file: entry.info for entry in filled}
    selection = _finish(manifest, fps, robot_type, features, selected, scans, recipes)
    check_texts(selection)
    # File names that are not UTF-8 can be told, and printed, only as escapes.
    told = (
        *plan_notes(sources, selected, scans, manifest.cast, is_copied=mode != "transcode"),
        *left_out_notes(selected, scans),
    )
    notes = tuple(text.encode(errors="backslashreplace").decode() for text in told)
    made = Plan(
        manifest.name,
        selection,
        sources,
        tuple(reconciled),
        {a: b for a, b in manifest.tasks.items() if a != b},
        mode,
        infos,
        notes,
        manifest.version,
        filled,
        manifest.cast,
        "stored" if is_stored else "sampled",
        Caps(**manifest.caps.model_dump()),
    )
    _check_expected(made, manifest, where)
    return made


def _video_mode(videos: str, where: str) -> str:
    if videos not in ("join", "link", "transcode"):
        what = f"videos is join, link or transcode, not '{videos}'"
        raise BadRequest("prepare-videos-unknown", what, where=where)
    return videos


def _read_sources(loaded: Loaded[DatasetManifest], log: Log) -> list[Dataset]:
    problems = Problems()
    datasets: list[Dataset] = []
    for source in loaded.manifest.sources:
        root = loaded.path(source.path)
        try:
            name = source.name or Path(source.path).name
            dataset = read_dataset(root, name=name, leave_out=LeftOut(source))
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


def _select(sources: Sequence[SourcePlan], manifest: DatasetManifest) -> list[Selected]:
    selected: list[Selected] = []
    for source in sources:
        for episode in source.episodes:
            clips = {out: episode.clips[c] for out, c in source.cameras.items() if c in episode.clips}
            texts = tuple(manifest.tasks.get(text, text) for text in episode.tasks)
            moved = replace(episode, index=len(selected), clips=clips, tasks=texts)
            selected.append(Selected(moved, source.dataset.name))
    return selected


def _stored(
    sources: Sequence[SourcePlan], manifest: DatasetManifest, mode: str
) -> list[dict[str, Raw]] | None:
    """Of each selected episode, in order: output camera -> the statistics that its source stored.

    None where all clips are to be sampled; those of pictures that are encoded anew always are.
    """
    if manifest.camera_statistics == "sampled" or mode == "transcode":
        return None
    found: list[dict[str, Raw]] = []
    for source in sources:
        given = {out: camera for out, camera in source.cameras.items()}
        told = stored_camera_stats(source.dataset.root, source.dataset.version, given.values())
        for episode in source.episodes:
            own = {out: told[camera].get(episode.index) for out, camera in given.items()}
            found.append({out: raw for out, raw in own.items() if raw is not None})
    return found


def _judge(
    sources: Sequence[SourcePlan],
    manifest: DatasetManifest,
    selected: Sequence[Selected],
    scans: Sequence[Scan],
    where: str,
    problems: Problems,
) -> tuple[SourcePlan, ...]:
    judged: list[SourcePlan] = []
    rules = {name: camera.when_missing for name, camera in (manifest.cameras or {}).items()}
    outputs = list(manifest.cameras or {}) or [c for s in sources for c in s.cameras]
    gone: dict[str, dict[str, str]] = {}  # output camera -> source that lacks it -> why
    asked = {source.dataset.name: given for source, given in zip(sources, manifest.sources, strict=True)}
    for source in sources:
        name = source.dataset.name
        own = [(s, scan) for s, scan in zip(selected, scans, strict=True) if s.recipe == name]
        decisions: Source = asked[name]
        for item, scan in own:
            number = item.episode.origin.episode
            for problem in scan.problems:
                problems.add(problem, Settles(decisions, exclude=(number,), of=len(own)))
        check_read(source.dataset, where, problems)
        for camera in check_missing_cameras(source.dataset, source.cameras, rules, own, decisions, problems):
            gone.setdefault(camera, {})[name] = "no video file holds it"
        for camera in outputs:
            if camera not in source.cameras and rules.get(camera) == "drop":
                gone.setdefault(camera, {})[name] = "it is not declared"
        check_clips(source.dataset, own, decisions, problems)
        worst = check_clocks(source.dataset, own, decisions, where, problems)
        judged.append(replace(source, restamped_s=worst))
    return tuple(_without_cameras(source, gone) for source in judged)


def _without_cameras(source: SourcePlan, gone: Mapping[str, Mapping[str, str]]) -> SourcePlan:
    """A camera that one source lacks and may lack cannot be a camera of the whole."""
    dropped = dict(source.dropped)
    for camera, lacking in gone.items():
        if camera in source.cameras:
            own = lacking.get(source.dataset.name)
            dropped[source.cameras[camera]] = own or f"{next(iter(lacking))} has no video file for it"
    kept = {out: given for out, given in source.cameras.items() if out not in gone}
    return replace(source, cameras=kept, dropped=dropped)


def _cameras(sources: Sequence[SourcePlan]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(camera for source in sources for camera in source.cameras))


def _finish(
    manifest: DatasetManifest,
    fps: float,
    robot_type: str | None,
    features: Mapping[str, Any],
    selected: Sequence[Selected],
    scans: Sequence[Scan],
    recipes: Mapping[str, Recipe],
) -> Selection:
    cameras = [name for name, feature in features.items() if feature.dtype == "video"]
    episodes = []
    for item, scan in zip(selected, scans, strict=True):
        clips = {camera: item.episode.clips[camera] for camera in cameras}
        told = {camera: scan.statistics.get(camera) for camera in cameras}
        kept = {camera: found for camera, found in told.items() if isinstance(found, KeptCamera)}
        episode = replace(item.episode, tasks=scan.tasks, clips=clips)
        episodes.append(replace(item, episode=episode, kept=kept))
    tasks = tuple(dict.fromkeys(text for scan in scans for text in scan.tasks))
    return Selection(manifest.name, fps, robot_type, features, tuple(episodes), recipes, tasks)


def _check_expected(made: Plan, manifest: DatasetManifest, where: str) -> None:
    expect, selection = manifest.expect, made.selection
    pairs: list[tuple[str, Any, Any]] = [
        ("episodes", expect.episodes, len(selection.episodes)),
        ("frames", expect.frames, selection.frames),
        ("fps", expect.fps, selection.fps),
        ("cameras", expect.cameras, len(made.cameras)),
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
