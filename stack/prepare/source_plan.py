"""What each source gives to the output: episodes, features, cameras and task texts, and why the rest goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stack.dataset.model import INDEX_FEATURES, Dataset, Episode, Feature
from stack.dataset.selection import Recipe, Take
from stack.errors import BadRequest, StackError
from stack.manifests import DatasetManifest
from stack.manifests.dataset import Source
from stack.prepare.blueprint import SourcePlan
from stack.prepare.camera_plan import nowhere
from stack.prepare.cameras import choose_cameras
from stack.prepare.choose import Part, choose_features, known_features, why_not_kept
from stack.prepare.episodes import choose_episodes, ranges
from stack.prepare.judge import check_rows_there
from stack.prepare.problems import Problems, Settles


def choose(
    datasets: Sequence[Dataset], manifest: DatasetManifest, where: str, problems: Problems
) -> tuple[tuple[SourcePlan, ...], dict[str, dict[str, Part]]]:
    """What each source gives: its plan, and output feature -> its part of it, by the source's name."""
    try:
        known = {
            dataset.name: known_features(dataset, source, where)
            for dataset, source in zip(datasets, manifest.sources, strict=True)
        }
    except StackError as error:
        problems.add(error)
        return (), {}
    features, cameras, reasons = _shared(known, manifest)
    sources: list[SourcePlan] = []
    parts: dict[str, dict[str, Part]] = {}
    for dataset, source in zip(datasets, manifest.sources, strict=True):
        try:
            chosen = choose_episodes(dataset, source, where)
            check_rows_there(dataset, source, len(chosen), problems)
            _refuse_empty(dataset, source, chosen, problems)
            own = known[dataset.name]
            parts[dataset.name] = choose_features(dataset, own, manifest, features, where)
            renamed = choose_cameras(dataset, own, manifest, cameras, where)
            _refuse_one_name_for_two(parts[dataset.name], renamed, where)
        except StackError as error:
            problems.add(error)
            continue
        used = {take.feature.name for part in parts[dataset.name].values() for take in part.takes}
        used |= set(renamed.values())
        dropped = {
            feature.name: reasons.get(name, "the manifest does not keep it")
            for name, feature in own.items()
            if feature.name not in used and name not in INDEX_FEATURES
        }
        sources.append(SourcePlan(dataset, source.path, chosen, renamed, dropped))
    for name in manifest.cameras or ():
        if len(sources) == len(datasets) and not any(name in source.cameras for source in sources):
            problems.add(nowhere(name, where))
    return tuple(sources), parts


def _refuse_empty(dataset: Dataset, source: Source, chosen: Sequence[Episode], problems: Problems) -> None:
    empty = [episode for episode in chosen if episode.length == 0]
    if not empty:
        return
    numbers = tuple(episode.index for episode in empty)
    problems.add(
        BadRequest(
            "prepare-episode-empty",
            f"episodes {ranges(numbers)} of source '{dataset.name}' have no rows",
            where=str(empty[0].rows.file),
            do="exclude these episodes",
        ),
        Settles(source, exclude=numbers, of=len(chosen)),
    )


def _refuse_one_name_for_two(features: Mapping[str, Part], cameras: Mapping[str, str], where: str) -> None:
    if both := sorted(features.keys() & cameras.keys()):
        raise BadRequest(
            "prepare-name-twice",
            f"'{both[0]}' would be a feature and a camera; one would hide the other",
            where=where,
            do=f"call features.{both[0]} otherwise, or say under cameras which ones to keep",
        )


def recipe_of(source: SourcePlan, parts: Mapping[str, Part], tasks: dict[int, str]) -> Recipe:
    """How one source's rows become output rows."""
    columns = {name: part.takes for name, part in parts.items()}
    for out, given in source.cameras.items():
        feature = source.dataset.features[given]
        if feature.is_image:
            columns[out] = (Take(feature),)
    return Recipe(columns, tasks)


def _shared(
    known: Mapping[str, Mapping[str, Feature]], manifest: DatasetManifest
) -> tuple[list[str], list[str], dict[str, str]]:
    """Features and cameras that all sources share and that can be kept, and why the others are not."""
    reasons: dict[str, str] = {}
    features: list[str] = []
    cameras: list[str] = []
    for name in dict.fromkeys(name for own in known.values() for name in own):
        if name in INDEX_FEATURES:
            continue
        missing = [source for source, own in known.items() if name not in own]
        held = [own[name] for own in known.values() if name in own]
        is_camera = any(feature.is_camera for feature in held)
        asked = manifest.cameras if is_camera else manifest.features
        if asked is not None:
            reasons[name] = "the manifest does not keep it"
            continue
        unfit = [why_not_kept(replace(feature, name=name)) for feature in held]
        reason = None if is_camera else next((text for text in unfit if text is not None), None)
        if missing:
            reasons[name] = f"not in {', '.join(missing)}"
        elif reason is not None:
            reasons[name] = reason
        else:
            (cameras if is_camera else features).append(name)
    return features, cameras, reasons


def task_maps(
    datasets: Sequence[Dataset], manifest: DatasetManifest, where: str
) -> dict[str, dict[int, str]]:
    """Source -> its task_index -> the text to write.

    Raises:
        BadRequest: the manifest edits a text that no source has.
    """
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
