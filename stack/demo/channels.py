"""The channels of `observation.state` (163) and `action` (36), field by field, as AgiBot names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SIDES = ("left", "right")
ARM_JOINTS = 7
AXES, QUATERNION = ("x", "y", "z"), ("x", "y", "z", "w")


@dataclass(frozen=True)
class Field:
    """A run of channels: its name without the `state/` or `action/` in front, and one name a channel."""

    name: str
    description: str
    channels: tuple[str, ...]


def _both(*parts: str) -> tuple[str, ...]:
    return tuple(f"{side}_{part}" for side in SIDES for part in parts)


_GRIPPERS = _both("gripper")
_JOINTS = _both(*(f"arm_joint_{n + 1}" for n in range(ARM_JOINTS)))
_HEAD, _WAIST = ("yaw", "pitch"), ("pitch", "lift")
_BASE = ("forward", "turn")
_MATRIX = tuple(f"{row}{column}" for row in AXES for column in (*AXES, "t"))

STATE_FIELDS: tuple[Field, ...] = (
    Field("effector/position", "gripper opening, 0 closed to 1 open", _GRIPPERS),
    Field("effector/force", "gripping force, N", _GRIPPERS),
    Field("end/position", "hand position, m", _both(*AXES)),
    Field("end/orientation", "hand orientation, quaternion", _both(*QUATERNION)),
    Field("head/position", "head joints, rad", _HEAD),
    Field("head/velocity", "head joints, rad/s", _HEAD),
    Field("waist/position", "waist joints, rad and m", _WAIST),
    Field("waist/velocity", "waist joints, rad/s and m/s", _WAIST),
    Field("head/effort", "head joints, N m", _HEAD),
    Field("joint/position", "arm joints, rad", _JOINTS),
    Field("joint/velocity", "arm joints, rad/s", _JOINTS),
    Field("joint/effort", "arm joints, N m", _JOINTS),
    Field("joint/current", "arm motors, mA", _JOINTS),
    Field(
        "end/wrench",
        "force N and torque N m at the wrist",
        _both(*(f"f{a}" for a in AXES), *(f"t{a}" for a in AXES)),
    ),
    Field("end/velocity", "hand velocity, m/s", _both(*AXES)),
    Field("end/angular", "hand angular velocity, rad/s", _both(*AXES)),
    Field("waist/effort", "waist joints, N m and N", _WAIST),
    Field("effector/velocity", "gripper opening, 1/s", _GRIPPERS),
    Field("robot/position", "base position, m", AXES),
    Field("robot/orientation", "base orientation, quaternion", QUATERNION),
    Field("robot/velocity", "base velocity, m/s and rad/s", _BASE),
    Field("extrinsic/top_head", "camera pose, rotation and translation in mm", _MATRIX),
    Field("extrinsic/hand_left", "camera pose, rotation and translation in mm", _MATRIX),
    Field("extrinsic/hand_right", "camera pose, rotation and translation in mm", _MATRIX),
    Field("teleop/position", "hand position that the operator asks for, m", _both(*AXES)),
)

ACTION_FIELDS: tuple[Field, ...] = (
    Field("effector/position", "gripper opening, 0 closed to 1 open", _GRIPPERS),
    Field("end/position", "hand position, m", _both(*AXES)),
    Field("end/orientation", "hand orientation, quaternion", _both(*QUATERNION)),
    Field("joint/position", "arm joints, rad", _JOINTS),
    Field("head/position", "head joints, rad", _HEAD),
    Field("waist/position", "waist joints, rad and m", _WAIST),
    Field("robot/velocity", "base velocity, m/s and rad/s", _BASE),
)


def spans(fields: tuple[Field, ...]) -> dict[str, range]:
    """Field name -> its channels' indices."""
    placed, start = {}, 0
    for field in fields:
        placed[field.name] = range(start, start + len(field.channels))
        start += len(field.channels)
    return placed


def width(fields: tuple[Field, ...]) -> int:
    return sum(len(field.channels) for field in fields)


def channel_names(fields: tuple[Field, ...]) -> list[str]:
    """One name a channel, unique in the feature."""
    return [f"{field.name.replace('/', '_')}_{channel}" for field in fields for channel in field.channels]


def field_descriptions(kind: str, fields: tuple[Field, ...]) -> dict[str, Any]:
    """The table that such exports carry in info.json; `kind` is `state` or `action`."""
    indices = spans(fields)
    return {
        f"{kind}/{field.name}": {
            "description": field.description,
            "dimensions": len(field.channels),
            "indices": list(indices[field.name]),
        }
        for field in fields
    }
