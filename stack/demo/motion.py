"""What happens in a demo episode: a hand reaches for the block of the named colour and grips it.

The commanded joints are a function of the joints now and of where the block lies, which only the pictures
show: a policy that looks can learn it, one that does not cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stack.demo.channels import ACTION_FIELDS, ARM_JOINTS, SIDES, STATE_FIELDS, spans, width

Array = NDArray[np.float64]

FPS = 30
COLOURS = ("red", "green", "blue")
HOME = np.array([0.30, -0.50, 0.20, 0.90, -0.30, 0.40, 0.10])
# How seven joints move for the hand's two directions in the picture; its pseudo-inverse is the way back.
REACH = np.array(
    [[0.9, 0.1], [-0.2, 0.8], [0.5, -0.6], [-0.7, 0.3], [0.4, 0.5], [-0.1, -0.9], [0.3, 0.2]],
    dtype=np.float64,
)
BACK = np.linalg.pinv(REACH) / 2
REST = {"left": np.array([0.30, 0.45]), "right": np.array([0.70, 0.45])}
GAIN = 0.09  # share of the way to the goal that one frame commands
GRIP_NEAR, GRIP_FAR = 0.04, 0.12  # distance at which the gripper is closed, at which it begins to close
CURRENT_SPIKE_MA = (1500.0, 3000.0)
BASE_NOISE, BASE_BURST, BURST_FRAMES = 7e-5, (0.4, 0.5), 2


@dataclass(frozen=True)
class Spike:
    """One motor's current at one frame."""

    frame: int
    joint: int
    value_ma: float


@dataclass(frozen=True)
class EpisodePlan:
    """What is decided about an episode before it runs.

    Attributes:
        colour: index into `COLOURS` of the block that the task names.
        side: 0 left hand, 1 right hand.
        blocks: (3, 2): where the block of each colour lies in the picture, 0 to 1.
        burst: sign of the base's short jerk in mid-episode; 0 for none.
        aborted: the take breaks off: joint readings of the last frames are lost.
    """

    length: int
    colour: int
    side: int
    blocks: Array
    spikes: tuple[Spike, ...]
    burst: int
    aborted: bool


@dataclass(frozen=True)
class Rows:
    """One episode's rows.

    Attributes:
        state: (N, 163) float32.  action: (N, 36) float32.
        hands: (N, 2, 2) float64: where the left and the right hand are in the picture.
        grippers: (N, 2) float64: opening of both grippers.
    """

    state: NDArray[np.float32]
    action: NDArray[np.float32]
    hands: Array
    grippers: Array


def run_episode(plan: EpisodePlan, rng: np.random.Generator, *, lost_frames: int) -> Rows:
    """Move the arms through one episode and write down what the robot would report."""
    n = plan.length
    joints = np.empty((n, 2, ARM_JOINTS))
    grippers = np.empty((n, 2))
    commands, grips = np.empty_like(joints), np.empty_like(grippers)
    goals = [REST[side] for side in SIDES]
    goals[plan.side] = plan.blocks[plan.colour]
    goal = np.stack([_joints_at(i, point) for i, point in enumerate(goals)])
    now = rng.normal([_joints_at(i, REST[s]) for i, s in enumerate(SIDES)], 0.08)
    grip = np.ones(2)
    for t in range(n):
        joints[t], grippers[t] = now, grip
        commands[t] = now + GAIN * (goal - now)
        far = np.linalg.norm(_hands(now) - np.stack(goals), axis=1)
        closing = np.clip((far - GRIP_NEAR) / (GRIP_FAR - GRIP_NEAR), 0, 1)
        grips[t] = np.where(np.arange(2) == plan.side, closing, 1.0)
        now = commands[t] + rng.normal(0, 0.002, now.shape)
        grip = grip + 0.5 * (grips[t] - grip)
    hands = np.stack([_hands(q) for q in joints])
    asked = np.stack([_hands(q) for q in commands])
    jerk = _base_velocity(plan, rng)
    state = _state(plan, rng, joints, grippers, hands, asked, jerk)
    if plan.aborted:
        state[n - lost_frames :, list(spans(STATE_FIELDS)["joint/position"])] = np.nan
    action = _action(commands, grips, asked, jerk)
    return Rows(state.astype(np.float32), action.astype(np.float32), hands, grippers)


def _joints_at(side: int, point: Array) -> Array:
    mirrored = HOME * (1 if side == 0 else -1)
    return np.asarray(mirrored + REACH @ (point - REST[SIDES[side]]) * 2)


def _hands(joints: Array) -> Array:
    """(2, 7) joints -> (2, 2) places in the picture; the inverse of `_joints_at` for what it reaches."""
    back = np.linalg.pinv(REACH) / 2
    return np.stack(
        [REST[s] + back @ (joints[i] - HOME * (1 if i == 0 else -1)) for i, s in enumerate(SIDES)]
    )


def _base_velocity(plan: EpisodePlan, rng: np.random.Generator) -> Array:
    """(N, 2): a base that stands still, but for sensor noise and, in few episodes, one jerk of two frames."""
    velocity = rng.normal(0, BASE_NOISE, (plan.length, 2))
    if plan.burst:
        middle = plan.length // 2
        velocity[middle : middle + BURST_FRAMES] = plan.burst * rng.uniform(*BASE_BURST, (BURST_FRAMES, 2))
    return velocity


def _state(
    plan: EpisodePlan,
    rng: np.random.Generator,
    joints: Array,
    grippers: Array,
    hands: Array,
    asked: Array,
    jerk: Array,
) -> Array:
    n = plan.length
    flat = joints.reshape(n, -1)
    velocity = np.gradient(flat, axis=0) * FPS
    current = 3 * velocity + rng.normal(0, 4, flat.shape)
    for spike in plan.spikes:
        current[spike.frame, spike.joint] = spike.value_ma
    places = _poses(hands)
    held = np.repeat(1 - grippers, 3, axis=1)
    report = {
        "effector/position": grippers,
        "effector/force": 25 * (1 - grippers) + rng.normal(0, 0.2, (n, 2)),
        "end/position": places,
        "end/orientation": _orientations(joints),
        "head/position": rng.normal([0.0, 0.45], 0.004, (n, 2)),
        "head/velocity": rng.normal(0, 0.02, (n, 2)),
        "waist/position": rng.normal([0.2, 0.30], 0.002, (n, 2)),
        "waist/velocity": rng.normal(0, 0.01, (n, 2)),
        "head/effort": rng.normal(0, 0.3, (n, 2)),
        "joint/position": flat,
        "joint/velocity": velocity,
        "joint/effort": 6 * np.sin(flat) + rng.normal(0, 0.3, flat.shape),
        "joint/current": current,
        "end/wrench": _wrench(held, rng),
        "end/velocity": np.gradient(places, axis=0) * FPS,
        "end/angular": rng.normal(0, 0.05, (n, 6)),
        "waist/effort": rng.normal([4.0, 120.0], 1.0, (n, 2)),
        "effector/velocity": np.gradient(grippers, axis=0) * FPS,
        "robot/position": np.tile(rng.normal(0, 0.5, 3) * [1, 1, 0], (n, 1)),
        "robot/orientation": np.tile(_turn_about_z(rng.normal(0, 0.2)), (n, 1)),
        "robot/velocity": jerk,
        "extrinsic/top_head": _extrinsic(rng, n, [380.0, -40.0, 930.0]),
        "extrinsic/hand_left": _extrinsic(rng, n, [-620.0, 410.0, -150.0]),
        "extrinsic/hand_right": _extrinsic(rng, n, [-640.0, -390.0, -140.0]),
        "teleop/position": _poses(asked),
    }
    return _fill(report, spans(STATE_FIELDS), n, width(STATE_FIELDS))


def _action(commands: Array, grips: Array, asked: Array, jerk: Array) -> Array:
    n = len(commands)
    order = {
        "effector/position": grips,
        "end/position": _poses(asked),
        "end/orientation": _orientations(commands),
        "joint/position": commands.reshape(n, -1),
        "head/position": np.tile([0.0, 0.45], (n, 1)),
        "waist/position": np.tile([0.2, 0.30], (n, 1)),
        "robot/velocity": jerk,
    }
    return _fill(order, spans(ACTION_FIELDS), n, width(ACTION_FIELDS))


def _fill(parts: dict[str, Array], places: dict[str, range], rows: int, channels: int) -> Array:
    assert parts.keys() == places.keys()
    out = np.empty((rows, channels))
    for name, indices in places.items():
        out[:, indices.start : indices.stop] = parts[name]
    return out


def _poses(hands: Array) -> Array:
    """(N, 2, 2) places in the picture -> (N, 6) metres on and above the table."""
    height = 0.25 - 0.15 * hands[:, :, 1:]
    return np.concatenate([hands * 0.8, height], axis=2).reshape(len(hands), 6)


def _orientations(joints: Array) -> Array:
    """(N, 8): the hands turn about their own axis with the last joint."""
    half = joints[:, :, -1] / 2
    zero = np.zeros_like(half)
    return np.stack([zero, zero, np.sin(half), np.cos(half)], axis=2).reshape(len(joints), 8)


def _turn_about_z(angle: float) -> Array:
    return np.array([0.0, 0.0, np.sin(angle / 2), np.cos(angle / 2)])


def _wrench(held: Array, rng: np.random.Generator) -> Array:
    """(N, 12): up to 50 N along the grip, a few N m."""
    n = len(held)
    force = held.reshape(n, 2, 3) * [10.0, -15.0, 45.0] + rng.normal(0, 0.8, (n, 2, 3))
    torque = held.reshape(n, 2, 3) * [0.8, 0.5, -1.2] + rng.normal(0, 0.05, (n, 2, 3))
    return np.clip(np.concatenate([force, torque], axis=2).reshape(n, 12), -50, 50)


def _extrinsic(rng: np.random.Generator, n: int, translation_mm: list[float]) -> Array:
    """(N, 12): a 3x4 matrix, calibrated once an episode; its translation trembles in the last digits."""
    angle = rng.normal(0, 0.02)
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    place = np.array(translation_mm) + rng.normal(0, 8, 3)
    matrix = np.concatenate([turn, place[:, None]], axis=1).ravel()
    rows = np.tile(matrix, (n, 1))
    rows[:, 3::4] += rng.normal(0, 1e-3, (n, 3))
    return rows
