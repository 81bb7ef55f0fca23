"""The episode table against the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from stack.audit.evidence import whole
from stack.audit.kinds import Case, check, kind
from stack.audit.layout import named_data_file
from stack.faults import Fault, Place

EPISODE_ORDER = kind(
    "episode-order",
    "error",
    "rows",
    title="the episode table is not numbered 0, 1, 2, ... in row order",
    consequence="v3.0 looks episodes up by position: another episode's range and videos are taken. v2.x "
    "converters number episodes by counting files",
    mend="number the episodes from 0 without gaps and sort the table by episode_index",
    also={"warning": "gaps or disorder in v2.x, where episodes are looked up by number"},
)
EPISODE_LENGTH = kind(
    "episode-length-differs",
    "error",
    "rows",
    title="an episode's stated length is not its number of rows",
    consequence="samplers and converters cut or overrun the episode",
    mend="write the counted length into the episode table",
)
EPISODE_UNLISTED = kind(
    "episode-unlisted",
    "error",
    "rows",
    title="rows belong to an episode that the table does not list",
    consequence="these rows are loaded, but no episode's range covers them",
    mend="add the episode to the table, or take its rows out",
)
EPISODE_WITHOUT_ROWS = kind(
    "episode-without-rows",
    "error",
    "rows",
    title="a listed episode has no rows",
    consequence="the loader takes the dataset for incomplete and asks the hub",
    mend="deliver the rows, or take the episode out of the table",
)
RANGE_WRONG = kind(
    "rows-range-wrong",
    "error",
    "rows",
    title="dataset_from_index or dataset_to_index is not where the episode's rows are",
    consequence="action chunks are cut at the wrong rows or reach into the next episode",
    mend="recompute both from the counted lengths",
)
FILE_INDEX_WRONG = kind(
    "data-file-index-wrong",
    "warning",
    "rows",
    title="data/chunk_index and data/file_index do not name the file with the episode's rows",
    consequence="loading works, but lerobot's merge, delete and split silently lose the episode, or stop "
    "where there is no number (lerobot issues 2401, 2429)",
    mend="write the chunk and file that hold the rows; `stack prepare` does",
)
OVER_FILES = kind(
    "episode-over-files",
    "warning",
    "files",
    title="the rows of an episode lie in several files (v3.0)",
    consequence="loading works; the episode table can name one file only, so that lerobot's merge, delete "
    "and split lose the rest, and `stack convert` and its like refuse the dataset",
    mend="join these row files into the first, in their order (`pyarrow.concat_tables`), and delete the "
    "others; then `stack mend SOURCE TARGET`: it writes the episode table anew",
)
ROW_GROUPS = kind(
    "row-groups-not-per-episode",
    "note",
    "rows",
    title="a row file's row groups are not one an episode (v3.0)",
    consequence="reading one episode reads its neighbours too; lerobot relies on one row group an episode "
    "from 0.6 on when it streams or cuts (lerobot issue 3807)",
    mend="write the rows again; `stack prepare` writes one row group an episode",
)


@check("row groups", ROW_GROUPS)
def row_groups(case: Case) -> Iterator[Fault]:
    evidence, rows = case.evidence, case.evidence.rows
    lengths: dict[str, list[int]] = {}
    for span in rows.spans if evidence.is_v3 else ():
        lengths.setdefault(span.file, []).append(span.count)
    for file, own in lengths.items():
        groups = [size for size in rows.groups.get(file, ()) if size]
        if groups != own:
            yield ROW_GROUPS.fault(
                f"{file} has {len(groups)} row groups of up to {max(groups, default=0)} rows for"
                f" {len(own)} episodes",
                where=Place(file),
                data={"row_groups": len(groups), "episodes": len(own)},
            )


@check("the episode table's numbering", EPISODE_ORDER)
def episode_numbers(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    wrong = [entry for entry in evidence.episodes if entry.index != entry.position]
    if not wrong:
        return
    first = wrong[0]
    numbers = [entry.index for entry in evidence.episodes]
    doubled = [n for n, count in Counter(numbers).items() if count > 1]
    harmless = not evidence.is_v3 and None not in numbers and not doubled
    message = f"row {first.position} of the table is episode {first.index}"
    if doubled:
        message += f"; listed twice: {doubled[:5]}"
    yield EPISODE_ORDER.fault(
        message,
        where=Place(first.file, first.index),
        severity="warning" if harmless else "error",
        count=len(wrong),
    )


@check("each episode's length", EPISODE_LENGTH, EPISODE_UNLISTED, EPISODE_WITHOUT_ROWS)
def episode_lengths(case: Case) -> Iterator[Fault]:
    evidence, rows = case.evidence, case.evidence.rows
    if not rows.files:
        return
    counted = rows.lengths
    listed = {entry.index for entry in evidence.episodes}
    missing = {miss.episode for miss in evidence.layout.misses if miss.template == "data_path"}
    unread = {episode for name, episode in evidence.layout.data_files if name in rows.unread}
    for entry in evidence.episodes:
        if entry.index is None:
            continue
        if counted.get(entry.index):
            if entry.length != counted[entry.index]:
                stated = "absent" if entry.length is None else entry.length
                yield EPISODE_LENGTH.fault(
                    f"length is {stated}; counted: {counted[entry.index]} rows",
                    where=Place(entry.file, entry.index),
                    data={"stated": entry.length, "counted": counted[entry.index]},
                )
        elif entry.index not in missing | unread and not (evidence.is_v3 and rows.unread):
            yield EPISODE_WITHOUT_ROWS.fault(
                f"episode {entry.index} is listed with {entry.length} rows; none is there",
                where=Place(entry.file, entry.index),
            )
    for episode in sorted(set(counted) - listed) if evidence.episodes else ():
        span = next(span for span in rows.spans if span.episode == episode)
        yield EPISODE_UNLISTED.fault(
            f"{counted[episode]} rows belong to episode {episode}, which is not in the table",
            where=Place(span.file, episode),
        )


@check("each episode's range of rows (v3.0)", RANGE_WRONG, FILE_INDEX_WRONG, OVER_FILES)
def episode_ranges(case: Case) -> Iterator[Fault]:
    evidence, rows = case.evidence, case.evidence.rows
    if not evidence.is_v3 or rows.unread:
        return
    first = {span.episode: span for span in reversed(rows.spans)}
    files: dict[int, dict[str, int]] = {}
    for span in rows.spans:
        files.setdefault(span.episode, {}).setdefault(span.file, span.start)
    for entry in evidence.episodes:
        if entry.index is None or entry.index not in first:
            continue
        span = first[entry.index]
        if len(files[entry.index]) > 1:
            yield OVER_FILES.fault(
                f"the rows of episode {entry.index} lie in {len(files[entry.index])} files:"
                f" {', '.join(list(files[entry.index])[:3])}",
                where=Place(entry.file, entry.index),
            )
        got = tuple(whole(entry.raw.get(f"dataset_{end}_index")) for end in ("from", "to"))
        right = (span.start, span.start + rows.lengths[entry.index])
        if got != right:
            yield RANGE_WRONG.fault(
                f"the table says rows {got[0]} to {got[1]}; they are {right[0]} to {right[1]}",
                where=Place(entry.file, entry.index),
                data={"stated": got, "counted": right},
            )
        named = named_data_file(evidence, evidence.layout, entry.raw)
        if named is not None and named != span.file and named in evidence.files:
            yield FILE_INDEX_WRONG.fault(
                f"the table names {named}; the rows are in {span.file}", where=Place(entry.file, entry.index)
            )
        stored = [entry.raw.get(key) for key in ("data/chunk_index", "data/file_index")]
        if None in map(whole, stored):
            other = sorted(key for key in entry.raw if key.startswith("data_"))
            yield FILE_INDEX_WRONG.fault(
                f"data/chunk_index is {stored[0]}, data/file_index {stored[1]}; the rows are in {span.file}"
                + (f"; the table has {', '.join(other)}, which lerobot does not read" if other else ""),
                where=Place(entry.file, entry.index),
            )


def padded_share(lengths: list[int], horizon: int) -> float:
    """Share of action steps, over all frames' chunks, that lie past the end of their episode."""
    array = np.asarray(lengths, np.int64)
    short = np.minimum(array, horizon - 1)
    # Frame t of an episode of L rows has max(0, t + horizon - L) steps past the end.
    padded = short * (horizon - 1) - short * (short - 1) // 2
    return float(padded.sum() / (array.sum() * horizon)) if array.sum() else 0.0
