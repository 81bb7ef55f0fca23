"""The faults that the demo deliveries carry, as data: what `audit` must find there, and where."""

from __future__ import annotations

from dataclasses import dataclass

TASK, TASK_1 = "demo_task", "demo_task-1"


@dataclass(frozen=True)
class PlantedFault:
    """One fault at its place.

    Attributes:
        code: the audit's code for it.
        delivery: the folder under `deliveries/`.
        feature: the feature it is in; None for the whole delivery.
        episode: the episode it is in; None for all.
        what: what was done.
    """

    code: str
    delivery: str
    feature: str | None
    episode: int | None
    what: str


ABORTED_EPISODE = 7
NESTED_FEATURE = "observation.state"
MISSHAPEN_FEATURE = "timestamp"
CAMERA_KEYS = (
    "observation.images.top_head",
    "observation.images.hand_left",
    "observation.images.hand_right",
)
LISTED_FEATURES = ("ts", "action_src_status")


def _of_both() -> tuple[PlantedFault, ...]:
    planted = []
    for delivery in (TASK, TASK_1):
        planted += [
            PlantedFault(
                "list-typed-scalar", delivery, feature, None, "shape [1], stored as one-element lists"
            )
            for feature in LISTED_FEATURES
        ]
        planted += [
            PlantedFault("format-needs-conversion", delivery, None, None, "LeRobot v2.1"),
            PlantedFault(
                "stats-quantiles-missing", delivery, None, None, "v2.1 statistics have no q01 to q99"
            ),
            PlantedFault("state-too-wide", delivery, "observation.state", None, "163 wide; pi0.5 takes 32"),
            PlantedFault("action-too-wide", delivery, "action", None, "36 wide; pi0.5 takes 32"),
            PlantedFault(
                "extra-policy-feature", delivery, "action_src_status", None, "its name begins with 'action'"
            ),
            PlantedFault(
                "channel-extreme-scale",
                delivery,
                "observation.state",
                None,
                "motor currents with rare spikes",
            ),
            PlantedFault(
                "channel-extreme-scale", delivery, "action", None, "base velocity: noise, short bursts"
            ),
        ]
    return tuple(planted)


PLANTED: tuple[PlantedFault, ...] = (
    *_of_both(),
    *(
        PlantedFault("stats-count-zero", TASK, camera, None, "placeholder video statistics: zeros, count 0")
        for camera in CAMERA_KEYS
    ),
    PlantedFault("stats-nested", TASK_1, NESTED_FEATURE, None, "every statistic is a list in a list"),
    PlantedFault(
        "stats-shape-mismatch",
        TASK,
        MISSHAPEN_FEATURE,
        None,
        "count is [[n]], shape (1, 1), against std (1,)",
    ),
    PlantedFault(
        "feature-fps-entry", TASK_1, None, None, f"features carry an 'fps' entry, those of {TASK} do not"
    ),
    PlantedFault(
        "rows-not-finite",
        TASK,
        "observation.state",
        ABORTED_EPISODE,
        "an aborted take: NaN joints at its end",
    ),
)
