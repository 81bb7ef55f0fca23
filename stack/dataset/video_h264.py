"""H.264 parameter sets in an MP4's avcC (ISO/IEC 14496-15, 5.3.3.1) and the slices that use them.

A stream may hold several parameter sets under different numbers, and each picture says which one it uses: so
pictures that were encoded anew can stand between copied ones without a bit of the copied ones changing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

SEI, SPS, PPS = 6, 7, 8
RECOVERY_POINT = 6  # payloadType
SLICES = (1, 2, 5)  # coded slice, data partition A, coded slice of an IDR picture
NOT_IN_SAMPLES = (6, 7, 8, 9)  # messages, parameter sets, delimiters
SPS_NUMBERS = 32
START_CODE = re.compile(rb"\x00\x00+\x01")
HEAD_BYTES = 32  # enough for the first three numbers of a slice header


@dataclass(frozen=True)
class ParameterSets:
    """An avcC taken apart.

    Attributes:
        head: version, profile, compatibility and level.
        length_size: bytes of a NAL unit's length.
        sps: seq_parameter_set_id -> NAL unit.
        pps: pic_parameter_set_id -> NAL unit.
        used_sps: pic_parameter_set_id -> seq_parameter_set_id.
        rest: what follows for the high profiles.
    """

    head: bytes
    length_size: int
    sps: Mapping[int, bytes]
    pps: Mapping[int, bytes]
    used_sps: Mapping[int, int]
    rest: bytes

    @property
    def level(self) -> int:
        """level_idc: ten times the level."""
        return self.head[3]

    @property
    def profile(self) -> int:
        """profile_idc."""
        return self.head[1]

    def to_bytes(self) -> bytes:
        parts = [self.head, bytes([0xFC | (self.length_size - 1), 0xE0 | len(self.sps)])]
        parts += [len(unit).to_bytes(2, "big") + unit for unit in self.sps.values()]
        parts += [bytes([len(self.pps)])]
        parts += [len(unit).to_bytes(2, "big") + unit for unit in self.pps.values()]
        return b"".join([*parts, self.rest])

    def only(self, numbers: Collection[int]) -> ParameterSets:
        """Without the sets that pictures with these pic_parameter_set_ids do not use."""
        pps = {n: unit for n, unit in self.pps.items() if n in numbers}
        needed = {self.used_sps[n] for n in pps}
        return replace(self, sps={n: u for n, u in self.sps.items() if n in needed}, pps=pps)

    def plus(self, number: int, sps: bytes, pps: bytes) -> ParameterSets:
        """With one more pair under one number."""
        return replace(
            self,
            sps={**self.sps, number: sps},
            pps={**self.pps, number: pps},
            used_sps={**self.used_sps, number: number},
        )


@lru_cache(maxsize=64)
def parse_sets(extradata: bytes) -> ParameterSets | None:
    """Take an avcC apart; None where it is none, or would not come out as it went in."""
    if len(extradata) < 7 or extradata[0] != 1:
        return None
    try:
        at, sps = 6, {}
        for _ in range(extradata[5] & 0x1F):
            at, unit = _unit(extradata, at)
            sps[next(_numbers(unit[4:]))] = unit
        count, at, pps, used = extradata[at], at + 1, {}, {}
        for _ in range(count):
            at, unit = _unit(extradata, at)
            numbers = _numbers(unit[1:])
            number = next(numbers)
            pps[number], used[number] = unit, next(numbers)
    except (IndexError, StopIteration):
        return None
    sets = ParameterSets(extradata[:4], (extradata[4] & 3) + 1, sps, pps, used, extradata[at:])
    whole = sets.to_bytes() == extradata and set(used.values()) <= set(sps)
    return sets if whole else None


def _unit(data: bytes, at: int) -> tuple[int, bytes]:
    end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    if end > len(data):
        raise IndexError
    return end, data[at + 2 : end]


def _numbers(payload: bytes) -> Iterator[int]:
    """The unsigned Exp-Golomb numbers at the start of a payload (ITU-T H.264 9.1)."""
    clean = payload[:HEAD_BYTES].replace(b"\x00\x00\x03", b"\x00\x00")
    bits = "".join(f"{byte:08b}" for byte in clean)
    at = 0
    while (one := bits.find("1", at)) >= 0:
        width = one - at + 1
        if one + width > len(bits):
            return
        yield int(bits[one : one + width], 2) - 1
        at = one + width


def units_in(payload: bytes, length_size: int) -> Iterator[bytes]:
    """The NAL units of a length-prefixed packet."""
    at = 0
    while at + length_size < len(payload):
        end = at + length_size + int.from_bytes(payload[at : at + length_size], "big")
        yield payload[at + length_size : end]
        at = end


def recovery_frames(payload: bytes, length_size: int) -> int:
    """recovery_frame_cnt of a packet's recovery point message (ITU-T H.264 D.2.8); 0 where it has none.

    So many frames from this one on are not right yet when decoding begins here: they are refreshed part by
    part, as cameras for streaming do in place of key frames.
    """
    for unit in units_in(payload, length_size):
        kind_of_unit = unit[0] & 0x1F if unit else 0  # empty in a damaged packet
        if kind_of_unit in SLICES:
            break
        if kind_of_unit == SEI:
            body, at = unit[1:].replace(b"\x00\x00\x03", b"\x00\x00"), 0
            while at + 2 < len(body):
                kind, at = _sum_of_bytes(body, at)
                size, at = _sum_of_bytes(body, at)
                if kind == RECOVERY_POINT:
                    return next(_numbers(body[at : at + size]), 0)
                at += size
    return 0


def _sum_of_bytes(body: bytes, at: int) -> tuple[int, int]:
    """A message's type or size, coded as bytes of 255 and a smaller one, and where it ends."""
    total = 0
    while at < len(body):
        total, at = total + body[at], at + 1
        if body[at - 1] != 0xFF:
            break
    return total, at


def used_pps(payload: bytes, length_size: int) -> set[int]:
    """pic_parameter_set_ids of a packet's slices: the third number of each slice header."""
    found = set()
    for unit in units_in(payload, length_size):
        if unit[0] & 0x1F in SLICES:
            numbers = _numbers(unit[1:])
            next(numbers), next(numbers)
            found.add(next(numbers))
    return found


def split_start_codes(stream: bytes) -> list[bytes]:
    """The NAL units of an encoder's byte stream (ITU-T H.264 annex B)."""
    return [unit for unit in START_CODE.split(stream) if unit]


def as_sample(stream: bytes, length_size: int) -> bytes | None:
    """An encoder's byte stream as an MP4 sample; None where a unit is too long for the length field."""
    units = [unit for unit in split_start_codes(stream) if unit[0] & 0x1F not in NOT_IN_SAMPLES]
    if any(len(unit) >= 1 << (8 * length_size) for unit in units):
        return None
    return b"".join(len(unit).to_bytes(length_size, "big") + unit for unit in units)
