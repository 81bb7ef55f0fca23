"""Pictures that lie in the rows: there, whole by their own checksums, and of the size that info.json says."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stack.audit.checks.video import declared_size
from stack.audit.kinds import Case, check, kind
from stack.audit.shelter import DECODE_BYTES_A_SECOND, reading
from stack.faults import Fault, Place

MISSING = kind(
    "picture-missing",
    "error",
    "video",
    title="a row has no picture although its camera lies in the rows",
    consequence="the loader stops when it reaches the row, or trains on whatever its path leads to",
    mend="exclude the episode, or have the pictures written into the rows",
)
DAMAGED = kind(
    "picture-damaged",
    "error",
    "video",
    title="a picture in the rows is damaged",
    consequence="the loader stops when it reaches the row, perhaps after hours, or shows half a picture",
    mend="copy the file again; if the source is damaged too, exclude the episode",
)
SIZE = kind(
    "picture-size-differs",
    "warning",
    "video",
    title="pictures in the rows have another size than info.json says",
    consequence="the policy is built for another shape; where sizes differ between rows, batches fail",
    mend="write the true size into info.json; where rows differ, write them at one size",
)
PNG_MARK, JPEG_MARK = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
JPEG_END = b"\xff\xd9"
# Start-of-frame markers, whose segments hold the size (ITU-T T.81, table B.1).
_FRAME_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
BATCH_ROWS = 64


@dataclass(frozen=True)
class Header:
    """A picture's own words. `wrong` is empty where it is whole as far as that can be told undecoded."""

    size: tuple[int, int] | None  # width, height
    wrong: str = ""


@check("pictures in the rows", MISSING, DAMAGED, SIZE)
def pictures_in_rows(case: Case) -> Iterator[Fault]:
    evidence, rows = case.evidence, case.evidence.rows
    for name, feature in evidence.features.items():
        if feature.dtype != "image":
            continue
        wanted, sizes = declared_size(feature), set()
        odd: list[tuple[int, tuple[int, int]]] = []
        for file, start, _ in rows.files:
            for row, cell in _read(evidence.root / file, name):
                if row < 0:
                    message = f"the pictures of {name} in {file} cannot be read: {cell!s:.200}"
                    yield DAMAGED.fault(message, where=Place(file, feature=name))
                    continue
                place = rows.place(start + row, name)
                if isinstance(cell, str):
                    yield MISSING.fault(f"{place}: {cell}", where=place)
                    continue
                header = read_header(cell)
                if header.wrong:
                    yield DAMAGED.fault(f"{place}: {header.wrong}", where=place)
                elif header.size is not None:
                    sizes.add(header.size)
                    if wanted is not None and header.size != wanted:
                        odd.append((start + row, header.size))
        if odd:
            row, (width, height) = odd[0]
            several = f"; {len(sizes)} sizes occur" if len(sizes) > 1 else ""
            yield SIZE.fault(
                f"info.json says {_by(wanted)}; {len(odd)} pictures of {name} are not, the first is"
                f" {width}x{height}{several}",
                where=rows.place(row, name),
                count=len(odd),
            )


def _by(size: tuple[int, int] | None) -> str:
    return f"{size[0]}x{size[1]}" if size else "no size"


def _read(file: Path, name: str) -> Iterator[tuple[int, bytes | str]]:
    """As `cells`; where the column breaks off, row -1 and why."""
    try:
        yield from cells(file, name)
    except Exception as error:  # pyarrow raises OSError, ArrowInvalid and more on damaged pages
        yield -1, f"{type(error).__name__}: {error}"


def cells(file: Path, name: str) -> Iterator[tuple[int, bytes | str]]:
    """(row, encoded picture, or why there is none); nothing where the column is not there or no picture."""
    row = 0
    with reading(file, bytes_a_second=DECODE_BYTES_A_SECOND):
        parquet = pq.ParquetFile(file)
        kind = parquet.schema_arrow.field(name).type if name in parquet.schema_arrow.names else pa.null()
        if isinstance(kind, pa.ExtensionType):
            kind = kind.storage_type
        in_struct = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        if not (in_struct or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            return
        import pyarrow.compute as pc  # takes longer than the audit of a small dataset's form

        for batch in parquet.iter_batches(BATCH_ROWS, columns=[name]):
            column = batch.column(0)
            if isinstance(column, pa.ExtensionArray):
                column = column.storage
            column.validate(full=True)
            for cell in (pc.struct_field(column, "bytes") if in_struct else column).to_pylist():
                yield row, cell if cell else "no picture" if cell is None else "a picture of no bytes"
                row += 1


def read_header(cell: bytes) -> Header:
    """Size and wholeness: a PNG by its chunks' checksums (ISO 15948), a JPEG by its markers."""
    if cell.startswith(PNG_MARK):
        return _png(cell)
    if cell.startswith(JPEG_MARK):
        return _jpeg(cell)
    if cell.startswith((b"BM", b"RIFF", b"II", b"MM", b"GIF8")):
        return Header(None)
    return Header(None, f"{len(cell)} bytes that are no picture: they begin with {cell[:8].hex()}")


def _png(cell: bytes) -> Header:
    at, size = len(PNG_MARK), None
    while at + 12 <= len(cell):
        (length,) = struct.unpack_from(">I", cell, at)
        name, end = cell[at + 4 : at + 8], at + 8 + length
        if end + 4 > len(cell):
            break
        if zlib.crc32(cell[at + 4 : end]) != struct.unpack_from(">I", cell, end)[0]:
            said = name.decode("latin-1")
            return Header(size, f"the checksum of the PNG's {said!r} chunk at byte {at} is wrong")
        if name == b"IHDR" and length >= 8:
            size = struct.unpack_from(">II", cell, at + 8)
        at = end + 4
        if name == b"IEND":
            return Header(size) if size else Header(None, "a PNG without a header")
    return Header(size, f"the PNG ends too early, after {len(cell)} bytes")


def _jpeg(cell: bytes) -> Header:
    at = 2
    size = None
    while at + 9 <= len(cell) and cell[at] == 0xFF:
        marker = cell[at + 1]
        if marker in _FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", cell, at + 5)
            size = (width, height)
        if marker == 0xDA:  # the coded picture begins
            break
        at += 2 + struct.unpack_from(">H", cell, at + 2)[0]
    if size is None:
        return Header(None, "a JPEG without a frame header")
    if not cell.rstrip(b"\0").endswith(JPEG_END):
        return Header(size, f"the JPEG ends too early, after {len(cell)} bytes")
    return Header(size)
