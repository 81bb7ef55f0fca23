"""A picture's identity, painted into the picture: which delivery, camera, episode and frame it is.

32 bits stand as dark and bright blocks in two rows of 16 along the upper edge, so large that lossy video
leaves them readable. Any tool that mixes up, drops or repeats frames is caught by reading them.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

COLUMNS, ROWS = 16, 2
WIDTHS_BITS = (3, 3, 8, 10)  # delivery, camera, episode, frame
CHECK_BITS = 8
CHECK_POLYNOMIAL, CHECK_START = 0x07, 0xFF  # CRC-8 (x^8 + x^2 + x + 1); the start refuses an even picture
DARK, BRIGHT, MIDDLE = 24, 232, 128
CLEAR_OF_MIDDLE = 48  # a block nearer to the middle than this is no block


@dataclass(frozen=True)
class Identity:
    """Numbers of the delivery (0 to 7), camera (0 to 7), episode (0 to 255) and frame (0 to 1023)."""

    delivery: int
    camera: int
    episode: int
    frame: int


def band_height(width: int) -> int:
    """Pixels along the upper edge that the code takes in a picture of this width."""
    return ROWS * (width // COLUMNS)


def paint(picture: NDArray[np.uint8], identity: Identity) -> None:
    """Paint the code into `picture` (H, W, 3), uint8, in place.

    Raises:
        ValueError: a number does not fit its bits, or the picture has no room for blocks of 4 pixels.
    """
    block = picture.shape[1] // COLUMNS
    if block < 4 or picture.shape[0] < ROWS * block:
        raise ValueError(f"no room for the identity in a picture of shape {picture.shape}")
    word = _pack(identity)
    bits = [(word >> place) & 1 for place in reversed(range(COLUMNS * ROWS))]
    levels = np.where(np.array(bits).reshape(ROWS, COLUMNS), BRIGHT, DARK).astype(np.uint8)
    blocks = levels.repeat(block, axis=0).repeat(block, axis=1)
    picture[: ROWS * block, : COLUMNS * block] = blocks[:, :, None]


def read_identity(picture: NDArray[np.uint8]) -> Identity | None:
    """Read the code from a decoded picture (H, W, 3), uint8; None where there is none or it is damaged."""
    block = picture.shape[1] // COLUMNS
    if block < 4 or picture.shape[0] < ROWS * block:
        return None
    band = picture[: ROWS * block, : COLUMNS * block].astype(np.float64).mean(axis=2)
    # The inner part only: compression smears the blocks' edges.
    inner = band.reshape(ROWS, block, COLUMNS, block)[:, 1:-1, :, 1:-1].mean(axis=(1, 3)).ravel()
    if (np.abs(inner - MIDDLE) < CLEAR_OF_MIDDLE).any():
        return None
    word = int("".join("1" if level > MIDDLE else "0" for level in inner), 2)
    payload, check = word >> CHECK_BITS, word & ((1 << CHECK_BITS) - 1)
    if _check(payload) != check:
        return None
    numbers = []
    for width in reversed(WIDTHS_BITS):
        numbers.append(payload & ((1 << width) - 1))
        payload >>= width
    return Identity(*reversed(numbers))


def _pack(identity: Identity) -> int:
    payload = 0
    for number, width in zip(astuple(identity), WIDTHS_BITS, strict=True):
        if not 0 <= number < 1 << width:
            raise ValueError(f"{identity}: {number} does not fit {width} bits")
        payload = payload << width | number
    return payload << CHECK_BITS | _check(payload)


def _check(payload: int) -> int:
    value = CHECK_START
    for byte in payload.to_bytes(sum(WIDTHS_BITS) // 8, "big"):
        value ^= byte
        for _ in range(8):
            value = (value << 1) ^ (CHECK_POLYNOMIAL if value & 0x80 else 0)
            value &= 0xFF
    return value
