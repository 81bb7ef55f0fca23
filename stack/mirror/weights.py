"""What a safetensors file holds, from its header alone.

Format: https://github.com/huggingface/safetensors#format. Eight bytes, little-endian: the header's length;
the header, JSON; then the tensors' bytes, without gaps.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import BadRequest

MAX_HEADER_BYTES = 100_000_000  # the reference implementation's own limit
DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
}
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class WeightsFacts:
    """What the header says; the file's size has been checked against it.

    Attributes:
        count: tensors.
        parameters: elements over all tensors.
        dtypes: elements for each dtype, in safetensors' names.
        shapes: shape of each tensor, by name.
        metadata: free text of the writer.
    """

    count: int
    parameters: int
    dtypes: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    metadata: dict[str, str]

    @property
    def dtype(self) -> str:
        """The one dtype, or all of them joined by `+`."""
        return "+".join(sorted(self.dtypes))


def inspect(file: Path) -> WeightsFacts:
    """Read the header of a safetensors file.

    Raises:
        BadRequest: the file is not there, is no safetensors file, or is shorter or longer than its header
            says.
    """
    header, data_bytes = _read_header(file)
    metadata = header.pop("__metadata__", {})
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, int] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        dtype, shape, (begin, end) = _entry(file, name, entry)
        elements = math.prod(shape)
        if (end - begin) * 8 != elements * DTYPE_BITS[dtype]:
            raise _broken(file, f"tensor {name} of {dtype} {list(shape)} has {end - begin} bytes")
        shapes[name] = shape
        dtypes[dtype] = dtypes.get(dtype, 0) + elements
        spans.append((begin, end, name))
    _check_spans(file, sorted(spans), data_bytes)
    return WeightsFacts(len(shapes), sum(dtypes.values()), dtypes, shapes, metadata)


def _read_header(file: Path) -> tuple[dict[str, Any], int]:
    """The parsed header, and how many bytes follow it."""
    try:
        size_bytes = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if size_bytes < _LENGTH_BYTES or length > MAX_HEADER_BYTES:
                raise _broken(file, f"{size_bytes} bytes that do not begin with a header's length")
            if _LENGTH_BYTES + length > size_bytes:
                raise _broken(
                    file, f"cut off in its header: {_LENGTH_BYTES + length} bytes needed, {size_bytes} there"
                )
            header = json.loads(stream.read(length))
    except OSError as error:
        raise BadRequest(
            "weights-unreadable", f"the weights file cannot be read: {error}", where=str(file)
        ) from error
    except ValueError as error:
        raise _broken(file, f"its header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise _broken(file, "its header is not a JSON object")
    return header, size_bytes - _LENGTH_BYTES - length


def _entry(file: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise _broken(file, f"the header's entry for {name} is incomplete") from error
    numbers = (*shape, begin, end)
    if not all(isinstance(n, int) and n >= 0 for n in numbers) or begin > end:
        raise _broken(file, f"the header's entry for {name} has a wrong shape or place")
    if dtype not in DTYPE_BITS:
        raise _broken(file, f"tensor {name} has the unknown dtype {dtype}")
    return dtype, shape, (begin, end)


def _check_spans(file: Path, spans: list[tuple[int, int, str]], data_bytes: int) -> None:
    expected = 0
    for begin, end, name in spans:
        if begin != expected:
            raise _broken(file, f"tensor {name} begins at byte {begin}, {expected} expected")
        expected = end
    if expected != data_bytes:
        state = "cut off" if data_bytes < expected else "longer than its header says"
        raise _broken(file, f"{state}: {expected} bytes of tensors expected, {data_bytes} there")


def _broken(file: Path, what: str) -> BadRequest:
    return BadRequest(
        "weights-broken",
        f"not a whole safetensors file: {what}",
        where=str(file),
        do="fetch it again with 'stack mirror get'",
    )
