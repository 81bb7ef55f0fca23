"""Pictures that lie in the rows: encoded image files, bare or in the struct that lerobot's Image() writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import av
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stack.dataset.model import Episode, Feature, RowsRef
from stack.dataset.read_meta import open_parquet
from stack.dataset.rows import read_rows
from stack.dataset.stats import LEVELS, CameraSample, sampled_frames, thinning
from stack.errors import BadRequest

PICTURE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CODEC_OF_MARK = {b"\x89PNG": "png", b"\xff\xd8\xff": "mjpeg", b"BM": "bmp", b"RIFF": "webp", b"II": "tiff"}


@dataclass(frozen=True)
class PictureJob:
    """The pictures of one episode and camera; `feature` is the source's."""

    episode: Episode
    feature: Feature


def picture_column(column: pa.ChunkedArray, episode: Episode, feature: Feature) -> pa.Array:
    """A camera's column as struct<bytes: binary, path: string>, whichever way it is stored.

    Raises:
        BadRequest: neither bytes nor a struct with bytes, or a frame without a picture.
    """
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    kind = array.type
    if isinstance(kind, pa.ExtensionType):
        array, kind = array.storage, kind.storage_type
    where = f"{episode.rows.file}, episode {episode.index}"
    paths = pa.nulls(len(array), pa.string())
    cells = array
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        import pyarrow.compute as pc

        cells = pc.struct_field(array, "bytes")  # unlike StructArray.field, it keeps the struct's nulls
        if kind.get_field_index("path") >= 0:
            paths = pc.struct_field(array, "path").cast(pa.string())
    if not (pa.types.is_binary(cells.type) or pa.types.is_large_binary(cells.type)):
        raise BadRequest(
            "rows-not-pictures",
            f"{feature.name} is declared as pictures but stored as {column.type}",
            where=where,
        )
    if cells.null_count:
        frame = int(np.argmax(cells.is_null().to_numpy(zero_copy_only=False)))
        raise BadRequest(
            "rows-picture-missing",
            f"{feature.name} has no picture at frame {frame}; {cells.null_count} of {len(cells)} are missing",
            where=where,
            do="leave the episode or the camera out",
        )
    return pa.StructArray.from_arrays([cells.cast(pa.binary()), paths], fields=list(PICTURE_TYPE))


def episode_pictures(episode: Episode, feature: Feature) -> Sequence[bytes]:
    """The encoded pictures of an episode, one a frame."""
    column = read_rows(episode.rows, [feature.name]).column(feature.name)
    cells: list[bytes] = picture_column(column, episode, feature).field("bytes").to_pylist()
    return cells


def decode_picture(cell: bytes, where: str) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB.

    Raises:
        BadRequest: not an image file that FFmpeg knows, or a damaged one.
    """
    codec = next((name for mark, name in CODEC_OF_MARK.items() if cell.startswith(mark)), None)
    if codec is None:
        raise BadRequest(
            "picture-not-known", f"{len(cell)} bytes are no image file: {cell[:8].hex()}...", where=where
        )
    try:
        context = av.CodecContext.create(codec, "r")
        frames = [*context.decode(av.Packet(cell)), *context.decode(None)]
    except (av.FFmpegError, ValueError) as error:
        raise BadRequest(
            "picture-not-decodable", f"the {codec} cannot be decoded: {error}", where=where
        ) from error
    if not frames:
        raise BadRequest("picture-not-decodable", f"the {codec} holds no picture", where=where)
    return np.asarray(frames[0].to_ndarray(format="rgb24"), dtype=np.uint8)


def picture_shape(episode: Episode, feature: Feature) -> tuple[int, int, int]:
    """(height, width, 3) of an episode's first picture."""
    column = read_rows(RowsRef(episode.rows.file, episode.rows.start, 1), [feature.name]).column(feature.name)
    first = picture_column(column, episode, feature).field("bytes")[0].as_py()
    height, width = decode_picture(first, f"{episode.rows.file}, episode {episode.index}").shape[:2]
    return height, width, 3


def sample_pictures(job: PictureJob) -> CameraSample:
    """Like `stack.dataset.stats.sample_camera`, for pictures in rows.

    Raises:
        BadRequest: a picture cannot be decoded, or pictures of one episode differ in size.
    """
    cells = episode_pictures(job.episode, job.feature)
    numbers = sampled_frames(len(cells))
    histogram = np.zeros((3, LEVELS), dtype=np.int64)
    size: tuple[int, ...] | None = None
    for number in numbers:
        where = f"{job.episode.rows.file}, episode {job.episode.index}, frame {number}"
        picture = decode_picture(cells[number], where)
        if picture.shape[:2] != (size or picture.shape[:2]):
            raise BadRequest(
                "picture-size-differs",
                f"{job.feature.name} is {picture.shape[:2]} here and {size} before (height, width)",
                where=where,
            )
        size = picture.shape[:2]
        step = thinning(*size)
        thin = picture[::step, ::step]
        for channel in range(3):
            histogram[channel] += np.bincount(thin[..., channel].ravel(), minlength=LEVELS)
    return CameraSample(histogram, len(numbers)).packed()


def picture_bytes(rows: RowsRef, name: str) -> float:
    """About how many bytes these rows' pictures take, from the file's footer alone."""
    with open_parquet(rows.file) as parquet:
        total, metadata = 0, parquet.metadata
        for group in range(metadata.num_row_groups):
            for column in range(metadata.num_columns):
                entry = metadata.row_group(group).column(column)
                if entry.path_in_schema == name or entry.path_in_schema.startswith(f"{name}."):
                    total += entry.total_uncompressed_size
        return float(total * rows.count / max(1, metadata.num_rows))
