"""What openpi's loader and its statistics step need, and what would make them reach for a hub or wait."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.audit.declared import channel_name
from stack.audit.exact import ACTION, STATE, exact_stats, usable_rows
from stack.audit.kinds import Case, check, kind
from stack.audit.openpi import BATCH_FRAMES, BINS, chunk_weights, running_quantiles
from stack.audit.shelter import reading
from stack.dataset.stats import Stats
from stack.faults import Fault, Place

INFO = "meta/info.json"
VERSION = kind(
    "openpi-version",
    "error",
    "openpi",
    title="openpi's pinned lerobot reads format v2.x only",
    consequence="loading stops: v3.0 keeps several episodes a file and has no episodes.jsonl (openpi issues "
    "394, 443, 706, 756)",
    mend="train openpi on the v2.1 delivery, or train with lerobot's pi0.5 on this one",
)
ASKS_HUB = kind(
    "openpi-asks-hub",
    "error",
    "openpi",
    title="a file is missing that openpi's loader then looks for on the hub",
    consequence="one missing metadata, row or video file makes lerobot list the repository's versions and "
    "download all of it: offline a long wait and an error that does not name the file",
    mend="deliver the file, or take its episode out of the metadata",
)
COLUMN = kind(
    "openpi-column-missing",
    "error",
    "openpi",
    title="a column that openpi's loader reads is not there",
    consequence="building the dataset or the first sample fails with a KeyError",
    mend="write the column: timestamp = frame_index / fps, episode_index and task_index as the tables say",
)
COLLAPSE = kind(
    "openpi-quantiles-collapse",
    "error",
    "openpi",
    title="openpi's histogram gives other quantiles than the rows have",
    consequence="its 5000 bins span the whole range of a channel; a far value makes them so wide that q01 "
    "and q99 fall into one: the range becomes 1e-6 and ordinary values map to thousands",
    mend="exclude the episode with the far value, or write the exact q01 and q99 into norm_stats.json",
    also={"warning": "where the range is off by more than 5 % but has not collapsed"},
)
SCHEMA = kind(
    "openpi-schema",
    "error",
    "openpi",
    title="the types that a row file describes to the `datasets` library are none that openpi's can read",
    consequence="openpi's lock has datasets 3.6, which stops at the type 'List' of datasets 4 (lerobot issue "
    "1571) and gives undescribed pictures as bytes, at which the first item fails (openpi issue 662)",
    mend="write the rows again: `stack convert SRC DST --to v2.1`",
)
FEW = kind(
    "openpi-too-few-frames",
    "warning",
    "openpi",
    title="the dataset has fewer frames than one batch",
    consequence="the statistics step drops what does not fill a batch: it stops with a ValueError",
    mend="configure a smaller batch, or record more",
)
DECODES = kind(
    "openpi-decodes-pictures",
    "note",
    "openpi",
    title="openpi's statistics step decodes every picture, although it uses state and action only",
    consequence="hours to days of work (openpi issues 504, 571, 624, 688) that look like a hang",
    mend="take out the cameras in the config's repack step for this run, or limit it with --max-frames",
)
PLACE = kind(
    "openpi-place",
    "note",
    "openpi",
    title="the folder does not lie where openpi looks",
    consequence="openpi passes no folder: it looks at HF_LEROBOT_HOME/OWNER/NAME only, else it asks the hub",
    mend="link or move the dataset to $HF_LEROBOT_HOME/OWNER/NAME and write OWNER/NAME as repo_id",
)
TOKENIZER = kind(
    "openpi-tokenizer",
    "note",
    "openpi",
    title="the tokenizer that openpi fetches from a bucket is not in this machine's cache",
    consequence="even the statistics step builds the tokenizer: offline it waits, then fails",
    mend="put paligemma_tokenizer.model into $OPENPI_DATA_HOME/big_vision/ on the training machine",
)
META = ("meta/info.json", "meta/tasks.jsonl", "meta/episodes.jsonl")
COLUMNS = ("timestamp", "episode_index", "task_index")
OFF_FRAC, COLLAPSED_FRAC = 0.05, 0.01
SHOWN = 4


@check("openpi: format and files", VERSION, ASKS_HUB, COLUMN, FEW, needs=["openpi"])
def openpi_files(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    if evidence.is_v3:
        yield VERSION.fault("the layout is v3.0", where=Place(INFO, feature="codebase_version"))
        return
    stats = "meta/stats.json" if evidence.version == "v2.0" else "meta/episodes_stats.jsonl"
    for name in (*META, stats):
        if not evidence.files.get(name):
            yield ASKS_HUB.fault(f"{name} is not there", where=Place(name))
    for miss in evidence.layout.misses:
        place = Place(miss.expected or None, miss.episode, feature=miss.camera)
        yield ASKS_HUB.fault(f"{miss.expected or miss.template} is not there", where=place)
    for name in COLUMNS if evidence.rows.files else ():
        column = evidence.rows.columns.get(name)
        absent = [file for file, _, _ in evidence.rows.files] if column is None else column.absent_in
        if absent:
            yield COLUMN.fault(
                f"{name} is not in {len(absent)} row files",
                where=Place(absent[0], feature=name),
                count=len(absent),
            )
    if evidence.rows.count < BATCH_FRAMES:
        yield FEW.fault(
            f"{evidence.rows.count} frames; a batch of the configuration pi05_libero has {BATCH_FRAMES}",
            where=Place(INFO),
        )


@check("openpi: how row files describe their types", SCHEMA, needs=["openpi"])
def openpi_schema(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    pictures = {name for name, feature in evidence.features.items() if feature.dtype == "image"}
    found: dict[str, list[str]] = {}
    for file, _, _ in evidence.rows.files:
        with reading(evidence.root / file):
            schema = pq.read_schema(evidence.root / file)
        described = _described(schema)
        newer = sorted(name for name, text in described.items() if '"_type": "List"' in text)
        bare = sorted(
            name for name in pictures & set(schema.names) if '"Image"' not in described.get(name, "")
        )
        for names, said in ((newer, "are of type 'List'"), (bare, "are pictures without a description")):
            if names:
                found.setdefault(f"{', '.join(names[:SHOWN])} {said}", []).append(file)
    for said, files in found.items():
        yield SCHEMA.fault(said, places=tuple(map(Place, files)), count=len(files))


def _described(schema: pa.Schema) -> dict[str, str]:
    """Each column's entry in the `huggingface` metadata, as JSON; empty where there is none to be read."""
    try:
        entries = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {name: json.dumps(entry) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


@check("openpi: what its statistics step does", DECODES, PLACE, TOKENIZER, needs=["openpi"])
def openpi_runs(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    cameras = [name for name, feature in evidence.features.items() if feature.is_camera]
    if cameras:
        frames = evidence.rows.count
        yield DECODES.fault(
            f"{frames} frames x {len(cameras)} cameras: {frames * len(cameras)} pictures",
            where=Place(INFO),
            data={"pictures": frames * len(cameras)},
        )
    home = _lerobot_home()
    root = evidence.root.absolute()
    if not root.is_relative_to(home) or len(root.relative_to(home).parts) != 2:
        yield PLACE.fault(f"{root.name} is not at OWNER/NAME below {home}", where=Place(INFO))
    cache = Path(os.environ.get("OPENPI_DATA_HOME", "~/.cache/openpi")).expanduser()
    if not (cache / "big_vision/paligemma_tokenizer.model").is_file():
        yield TOKENIZER.fault(f"big_vision/paligemma_tokenizer.model is not below {cache}")


def _lerobot_home() -> Path:
    hub = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    return Path(os.environ.get("HF_LEROBOT_HOME", hub / "lerobot")).expanduser().absolute()


@check("openpi: quantiles by its histogram", COLLAPSE, needs=["openpi"])
def openpi_quantiles(case: Case) -> Iterator[Fault]:
    assert case.policy is not None
    evidence = case.evidence
    for name in (STATE, ACTION):
        exact, rows = exact_stats(evidence, name), usable_rows(evidence, name)
        column = evidence.rows.columns.get(name)
        if exact is None or column is None or column.values is None or len(rows) < 2:
            continue
        weights = None
        if name == ACTION:
            spans = [span.count for span in evidence.rows.spans]
            every = chunk_weights(spans, case.policy.action_horizon)
            weights = every[rows] if len(every) == evidence.rows.count else None
        q01, q99 = running_quantiles(column.values[rows], weights)
        yield from _compared(case, name, exact, q01, q99)


def _compared(
    case: Case, name: str, exact: Stats, q01: NDArray[np.float64], q99: NDArray[np.float64]
) -> Iterator[Fault]:
    """Channels whose estimated range is not that of the rows, the collapsed ones apart."""
    evidence = case.evidence
    low, high = exact.q01.reshape(-1), exact.q99.reshape(-1)
    span = high - low
    off = np.maximum(np.abs(q01 - low), np.abs(q99 - high))
    wrong = (span > 0) & (off > OFF_FRAC * span)
    collapsed = wrong & (q99 - q01 <= COLLAPSED_FRAC * span)
    values = evidence.rows.columns[name].values
    feature = evidence.features.get(name)
    assert values is not None
    for found, severity in ((collapsed, "error"), (wrong & ~collapsed, "warning")):
        channels = np.flatnonzero(found)
        texts, places = [], []
        for c in channels:
            far = int(np.nanargmax(np.abs(values[:, c].astype(np.float64) - exact.q50.reshape(-1)[c])))
            shown = channel_name(feature, int(c)) if feature else f"[{c}]"
            width = float(np.ptp(np.array([exact.min.reshape(-1)[c], exact.max.reshape(-1)[c]]))) / BINS
            texts.append(
                f"{shown}: {q01[c]:.4g} to {q99[c]:.4g}, exact {low[c]:.4g} to {high[c]:.4g}"
                f" (a bin is {width:.3g} wide; farthest value {values[far, c]:.4g})"
            )
            places.append(evidence.rows.place(far, name, shown))
        if texts:
            more = f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
            dropped = evidence.rows.count % BATCH_FRAMES if evidence.rows.count >= BATCH_FRAMES else 0
            more += (
                f"; the last {dropped} rows fill no batch of {BATCH_FRAMES} and are left out"
                if dropped
                else ""
            )
            yield COLLAPSE.fault(
                f"{len(texts)} of {span.size} channels of {name}: " + "; ".join(texts[:SHOWN]) + more,
                severity="error" if severity == "error" else "warning",
                places=tuple(places),
                count=len(texts),
                data={"exact": {"q01": low.tolist(), "q99": high.tolist()}},
            )
