"""The faults that lie between datasets, and who may settle each in a merge."""

from __future__ import annotations

from typing import Any

from stack.audit.kinds import Kind, kind
from stack.faults import Fault, Place

FPS = kind(
    "between-fps-differs",
    "error",
    "between",
    title="datasets have different frame rates",
    consequence="an action chunk of so many steps means another time in each; no merge may settle it",
    mend="leave one of the datasets out, or record at one rate; frames are not resampled",
)
ROBOT = kind(
    "between-robot-type-differs",
    "warning",
    "between",
    title="datasets name different robots",
    consequence="lerobot's merge refuses; different robots under one name teach contradictory motion",
    mend="if they are the same robot, in the dataset manifest: `robot_type: NAME`",
)
VERSION = kind(
    "between-version-differs",
    "note",
    "between",
    title="datasets are in different format versions",
    consequence="lerobot's merge refuses; `stack prepare` reads each as it is",
    mend="none needed for `stack prepare`, which writes one v3.0 dataset",
)
FEATURE = kind(
    "between-feature-missing",
    "error",
    "between",
    title="a feature is in some of the datasets only",
    consequence="a merge has no values for the others: lerobot's refuses with 'Same features is expected'",
    mend="in the dataset manifest list under `features:` or `cameras:` only those that all have",
)
WIDTH = kind(
    "between-width-differs",
    "error",
    "between",
    title="a feature has different widths",
    consequence="rows cannot be stacked; no merge may settle which channels belong together",
    mend="in the dataset manifest take the same named channels or fields from each source",
)
ORDER = kind(
    "between-channel-order-differs",
    "error",
    "between",
    title="the same channels stand in another order",
    consequence="merged by position, joints are mixed up without a message: the widths agree",
    mend="in the dataset manifest choose channels by name or field, per source",
)
NAMES = kind(
    "between-names-differ",
    "warning",
    "between",
    title="channels at the same position have different names",
    consequence="whether they mean the same cannot be told; merged by position they are taken as the same",
    mend="if they mean the same, name them in the manifest: `features: {F: [{from: F, names: [...]}]}`",
    also={"note": "where one dataset has no names: those of the other are taken"},
)
DTYPE = kind(
    "between-dtype-differs",
    "note",
    "between",
    title="a feature is stored in different types",
    consequence="lerobot's merge refuses; `stack prepare` writes the wider type of the two",
    mend="none needed for `stack prepare`",
    also={"error": "where one holds numbers and another texts, or whole numbers and fractions"},
)
ENTRY = kind(
    "between-entry-differs",
    "note",
    "between",
    title="entries of info.json about a feature differ in form",
    consequence="lerobot's merge refuses with 'Same features is expected' although the data fit "
    "(lerobot issue 2679); `stack prepare` settles it",
    mend="none needed for `stack prepare`",
)
VIDEO = kind(
    "between-video-differs",
    "error",
    "between",
    title="a camera's videos differ in codec, size or pixel format",
    consequence="they cannot be copied into one file, and batches of two sizes fail; no merge settles it "
    "without encoding again",
    mend="in the dataset manifest `videos: transcode` to one size, or leave the camera out under `cameras:`",
    also={"note": "where only codec or pixel format differ: `stack prepare` writes files of each"},
)
TASKS = kind(
    "between-task-nearly-equal",
    "warning",
    "between",
    title="tasks differ in case, spaces or punctuation only",
    consequence="a merge keeps both: the same task under two prompts and two numbers",
    mend="in the dataset manifest: `tasks: {OTHER TEXT: TEXT}`",
)
DUPLICATE = kind(
    "between-episode-duplicate",
    "warning",
    "between",
    title="two datasets hold the same take",
    consequence="merged it counts twice; where one copy is held out, the test set leaks",
    mend="exclude one of the two: `exclude_episodes: [...]` under one source of the dataset manifest",
)
UNITS = kind(
    "between-units-differ",
    "warning",
    "between",
    title="the same channels have ranges 10 times apart or more",
    consequence="merged, one dataset's motion is squeezed into a sliver of [-1, 1] and the other's decides "
    "the scale; a policy then acts in two units",
    mend="find out each one's unit (degrees, radians, metres, millimetres, share of the stroke) and have one "
    "delivered again",
    also={"error": "where most of the feature's moving channels are, by about the same factor"},
)


def between_fault(kind: Kind, message: str, merge: str, place: Place, **more: Any) -> Fault:
    """`merge`: `settles`, `with a manifest line`, or `refuses`."""
    data = {"merge": merge, **more.pop("data", {})}
    return kind.fault(message, where=place, data=data, **more)
