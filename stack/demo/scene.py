"""Pictures of the demo's table: three blocks, two hands, seen from above and from each hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stack.demo.faults import CAMERA_KEYS
from stack.demo.identity import band_height

Array = NDArray[np.float64]

BLOCK_COLOURS = np.array([[214, 48, 49], [38, 166, 91], [52, 104, 219]], dtype=np.uint8)
HAND_COLOURS = np.array([[240, 200, 60], [150, 80, 190]], dtype=np.uint8)
TABLE_FAR, TABLE_NEAR = np.array([96.0, 98.0, 104.0]), np.array([150.0, 146.0, 138.0])
AROUND = np.array([40, 42, 46], dtype=np.uint8)
BLOCK_HALF, HAND_RADIUS = 0.055, 0.05


@dataclass(frozen=True)
class Camera:
    """A camera: what it is called, its picture's size, and the hand that it sits on (None: above the table).

    `span` is how much of the table's width it sees, in table widths.
    """

    key: str
    width: int
    height: int
    hand: int | None
    span: float


CAMERAS: tuple[Camera, ...] = (
    Camera(CAMERA_KEYS[0], 160, 96, None, 1.0),
    Camera(CAMERA_KEYS[1], 96, 64, 0, 0.6),
    Camera(CAMERA_KEYS[2], 128, 80, 1, 0.6),
)


def render(camera: Camera, blocks: Array, hands: Array, grippers: Array) -> NDArray[np.uint8]:
    """One picture (H, W, 3), uint8 RGB; the edge that the identity takes is left black.

    Args:
        blocks: (3, 2) places on the table, 0 to 1.
        hands: (2, 2) places of the left and right hand.
        grippers: (2,) openings; an open gripper shows as a wider ring.
    """
    top = band_height(camera.width)
    x, y = _axes(camera, hands, camera.height - top)
    framed = np.zeros((camera.height, camera.width, 3), dtype=np.uint8)
    picture = framed[top:]
    picture[:] = (TABLE_FAR + (TABLE_NEAR - TABLE_FAR) * np.clip(y, 0, 1)[:, None])[:, None]
    picture[:, (x < 0) | (x > 1)] = AROUND
    picture[(y < 0) | (y > 1)] = AROUND
    for place, colour in zip(blocks, BLOCK_COLOURS, strict=True):
        across, down = np.abs(x - place[0]) < BLOCK_HALF, np.abs(y - place[1]) < BLOCK_HALF
        picture[np.ix_(down, across)] = colour
    for place, opening, colour in zip(hands, grippers, HAND_COLOURS, strict=True):
        far = np.square(x - place[0])[None, :] + np.square(y - place[1])[:, None]
        hole = HAND_RADIUS * (0.35 + 0.4 * opening)
        picture[(far < HAND_RADIUS**2) & (far > hole**2)] = colour
    return framed


def _axes(camera: Camera, hands: Array, height: int) -> tuple[Array, Array]:
    """Table coordinates of the pixel columns and of the rows below the identity's edge."""
    middle = np.array([0.5, 0.5]) if camera.hand is None else hands[camera.hand]
    across = (np.arange(camera.width) + 0.5) / camera.width - 0.5
    down = (np.arange(height) + 0.5) / height - 0.5
    return middle[0] + camera.span * across, middle[1] + camera.span * down
