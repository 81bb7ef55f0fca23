"""How info.json describes features: names, axes and further entries."""

from __future__ import annotations

from collections.abc import Iterator

from stack.audit.declared import flat_names
from stack.audit.kinds import Case, check, kind
from stack.dataset.model import INDEX_FEATURES, Feature
from stack.faults import Fault, Place

INFO = "meta/info.json"
NAMES = kind(
    "names-do-not-fit",
    "warning",
    "columns",
    title="names do not give one name for each channel",
    consequence="channels cannot be chosen by name, and reports can only number them",
    mend="write as many names as the shape is wide",
    also={
        "error": "for a camera in v3.0, where the policy cannot be built (lerobot issue 3786)",
        "note": "where the names fit but are nested in another list",
    },
)
AXES = kind(
    "camera-axes-differ",
    "warning",
    "columns",
    title="a camera's shape has its axes in another order than its names say",
    consequence="lerobot goes by the names: it exchanges the axes of a shape that needed no exchange, and "
    "the policy is built for pictures of a shape that never comes",
    mend="in info.json write the shape as height, width, channels, and these words as its names",
    also={"note": "where names do not contradict it, but channels come first: recorders write them last"},
)
FPS_ENTRY = kind(
    "feature-fps-entry",
    "warning",
    "columns",
    title="features carry an fps entry of their own",
    consequence="recorded datasets lack it, and lerobot's merge refuses with 'Same features is "
    "expected' (lerobot issue 2679)",
    mend="take `fps` out of each feature in info.json; `stack prepare` does",
)
NAME = kind(
    "feature-name-unfit",
    "warning",
    "columns",
    title="a feature's name holds a slash",
    consequence="lerobot refuses to write or merge such a dataset ('Feature names should not contain'), and "
    "takes its statistics apart at the slash",
    mend="rename the feature in info.json, the rows and the statistics",
)
EXTRA = kind(
    "extra-policy-feature",
    "warning",
    "columns",
    title="a further feature begins with action or observation",
    consequence="lerobot takes every action* feature for an output and every observation* one for a "
    "state: the policy's inputs and outputs are not those that were meant, and each needs statistics",
    mend="in the dataset manifest list under `features:` only those that the policy shall see",
)
CHANNELS = (1, 3, 4)


@check("names and further entries of features", NAMES, NAME, AXES, FPS_ENTRY, EXTRA)
def features_described(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    with_fps = []
    for name, feature in evidence.features.items():
        yield from _names(case, feature)
        if "/" in name:
            yield NAME.fault(f"the feature is called {name}", where=Place(INFO, feature=name))
        if "fps" in feature.raw:
            with_fps.append(name)
        actions = name.startswith("action") and name != "action"
        states = name.startswith("observation") and name != "observation.state" and not feature.is_camera
        if (actions or states) and not name.startswith("observation.images."):
            becomes = "an action output" if actions else "a state input"
            yield EXTRA.fault(f"{name} becomes {becomes} of the policy", where=Place(INFO, feature=name))
    if with_fps:
        yield FPS_ENTRY.fault(
            f"{len(with_fps)} of {len(evidence.features)} features have an fps entry: "
            + ", ".join(with_fps[:6])
            + (", ..." if len(with_fps) > 6 else ""),
            places=tuple(Place(INFO, feature=name) for name in with_fps),
        )


def _names(case: Case, feature: Feature) -> Iterator[Fault]:
    raw, place = feature.raw.get("names"), Place(INFO, feature=feature.name)
    names = flat_names(raw)
    if feature.is_camera:
        if names is None or len(names) != len(feature.shape):
            yield NAMES.fault(
                f"names of the camera {feature.name} are {raw!r}, its shape has {len(feature.shape)} axes",
                where=place,
                severity="error" if case.evidence.is_v3 else "warning",
            )
        yield from _axes(feature, names, place)
        return
    if names is None or len(feature.shape) != 1 or feature.name in INDEX_FEATURES:
        return
    if len(names) != feature.shape[0]:
        # A single name for one entry of a wide vector, such as ["motors"], is as much a misfit.
        yield NAMES.fault(f"{len(names)} names for a shape of {feature.shape[0]}", where=place)
    elif isinstance(raw, list) and any(isinstance(item, (list, dict)) for item in raw):
        yield NAMES.fault("the names are nested in another list", where=place, severity="note")


def _axes(feature: Feature, names: list[str] | None, place: Place) -> Iterator[Fault]:
    if len(feature.shape) != 3:
        return
    first, last = (feature.shape[axis] in CHANNELS for axis in (0, 2))
    if first == last:  # a picture of three pixels, or no picture
        return
    named = [(names or [""] * 3)[axis : axis + 1] for axis in (0, 2)]
    says_first, says_last = (bool(own) and own[0].startswith("channel") for own in named)
    if (first and says_last) or (last and says_first):
        yield AXES.fault(f"{feature.name} has shape {list(feature.shape)} and names {names}", where=place)
    elif first:
        said = f"{feature.name} has shape {list(feature.shape)}, channels first"
        yield AXES.fault(said, where=place, severity="note")
