"""Values and numbering of the rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stack.audit.checks.episodes import padded_share
from stack.audit.declared import channel_name
from stack.audit.kinds import Case, check, kind
from stack.audit.rows import Column, finite, in_episode
from stack.audit.takes import Repeat, agree, repeats, takes_of
from stack.faults import Fault, Place

NOT_FINITE = kind(
    "rows-not-finite",
    "error",
    "rows",
    title="values are NaN, infinite, null, or too large for float32",
    consequence="one such value makes the feature's statistics, then the loss, then every weight NaN",
    mend="exclude the episode (`exclude_episodes: [...]` in the dataset manifest), or repair the recording",
)
INDEX_GAPS = kind(
    "index-gaps",
    "error",
    "rows",
    title="an index column does not count up as it must",
    consequence="rows are addressed by it: other frames' actions and pictures are taken, without a message",
    mend="number again: index over all rows, frame_index in an episode, episode_index as the table says",
)
TOO_SHORT = kind(
    "episode-too-short",
    "warning",
    "rows",
    title="an episode is shorter than the action horizon, or a single frame",
    consequence="steps past the end repeat the last action and are not masked in the loss of pi0.5",
    mend="exclude the episode, or train with a shorter action horizon",
)
DUPLICATE = kind(
    "episode-duplicate",
    "warning",
    "rows",
    title="two episodes have the same rows, bit for bit or to rounding",
    consequence="the take counts twice; where one copy is held out, the test set leaks",
    mend="exclude one of the two: `exclude_episodes: [...]` in the dataset manifest",
    also={"note": "where `--deep` finds other pictures to the same rows: a replayed motion"},
)
HORIZON_LEAST = 2


@check("every value finite", NOT_FINITE)
def values_finite(case: Case) -> Iterator[Fault]:
    rows = case.evidence.rows
    for name, column in rows.columns.items():
        bad = _bad_elements(column)
        for span, offset in in_episode(rows.spans) if bad is not None else ():
            assert bad is not None
            block = bad[span.start : span.start + span.count]
            if not block.any():
                continue
            frames = np.flatnonzero(block.any(axis=1)) + offset
            channels = np.flatnonzero(block.any(axis=0)).tolist() if column.values is not None else []
            feature = case.evidence.features.get(name)
            shown = [channel_name(feature, int(c)) if feature else f"[{c}]" for c in channels[:4]]
            more = f" and {len(channels) - 4} more" if len(channels) > 4 else ""
            kinds = _what(column, span.start, span.count)
            yield NOT_FINITE.fault(
                f"{name}: {int(block.sum())} values in {len(frames)} frames"
                f" ({frames[0]} to {frames[-1]}) of episode {span.episode} are {kinds}"
                + (f"; channels {', '.join(shown)}{more}" if shown else ""),
                where=Place(span.file, span.episode, int(frames[0]), name, shown[0] if shown else None),
                count=int(block.sum()),
                data={"frames": [int(f) for f in frames[:50]], "channels": [int(c) for c in channels]},
            )


def _bad_elements(column: Column) -> NDArray[np.bool_] | None:
    """(N, D) bool, or None where all is well."""
    odd = [row for row, _ in column.odd_widths]
    if column.values is None:
        nulls = np.zeros((len(column.present), 1), np.bool_)
        nulls[column.null_rows] = True
        return nulls if nulls.any() else None
    if column.values.dtype.kind != "f":
        return None
    bad = finite(column.values)
    if bad.all():
        return None
    np.logical_not(bad, out=bad)
    bad[odd] = False  # told as width-differs
    absent = ~column.present
    absent[column.null_rows] = False
    bad[absent] = False  # told as column-missing
    return bad if bad.any() else None


def _what(column: Column, start: int, count: int) -> str:
    kinds = []
    first, last = (bisect_left(column.null_rows, row) for row in (start, start + count))
    if first < last:
        kinds.append("null")
    if column.values is not None:
        block = column.values[start : start + count]
        nulls = [row - start for row in column.null_rows[first:last]]
        others = np.delete(block, nulls, axis=0)
        kinds += ["NaN"] if np.isnan(others).any() else []
        kinds += ["infinite"] if np.isinf(block).any() else []
        beyond = np.isfinite(others) & ~finite(others)
        kinds += ["beyond the range of float32"] if beyond.any() else []
    return " and ".join(kinds)


@check("index columns", INDEX_GAPS)
def index_columns(case: Case) -> Iterator[Fault]:
    rows = case.evidence.rows
    seen: dict[int, int] = {}
    for name in ("index", "frame_index", "episode_index"):
        column = rows.columns.get(name)
        if column is None or not column.present.any():
            continue
        numbers = column.whole_numbers()
        if numbers is None:
            yield INDEX_GAPS.fault(
                f"{name} holds values that are no whole numbers", where=rows.place(0, name)
            )
            continue
        if name == "index":
            yield from _counts_up(case, name, numbers, _index_right(case, numbers))
            continue
        right = np.empty(rows.count, np.int64)
        right.fill(-1)
        seen.clear()
        for span in rows.spans:
            offset = seen.get(span.episode, 0)
            if name == "frame_index":
                right[span.start : span.start + span.count] = np.arange(offset, offset + span.count)
            else:
                right[span.start : span.start + span.count] = span.episode
            seen[span.episode] = offset + span.count
        yield from _counts_up(case, name, numbers, right)
    yield from _episodes_in_order(case)


def _index_right(case: Case, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """What `index` must be; where row files are missing, only the counting within each file is judged."""
    rows = case.evidence.rows
    right: NDArray[np.int64] = np.arange(rows.count)
    if rows.unread or any(miss.template == "data_path" for miss in case.evidence.layout.misses):
        for _, start, count in rows.files:
            right[start : start + count] += numbers[start] - start if count else 0
    return right


def _counts_up(
    case: Case, name: str, numbers: NDArray[np.int64], right: NDArray[np.int64]
) -> Iterator[Fault]:
    rows = case.evidence.rows
    off = (numbers != right) & rows.columns[name].present
    for span in rows.spans if name in ("frame_index", "episode_index") else ():
        own = numbers[span.start : span.start + span.count]
        jumps = np.flatnonzero(np.diff(own) != int(name == "frame_index"))
        here = slice(span.start, span.start + span.count)
        if not len(jumps) or not off[here].any():
            continue
        # Rows may be lost or in another order: `stack prepare` does not number over that.
        row, count = int(np.flatnonzero(off[here])[0]), int(off[here].sum())
        off[here] = False
        yield INDEX_GAPS.fault(
            f"{name} jumps within episode {span.episode}, first from {own[jumps[0]]} to"
            f" {own[jumps[0] + 1]} at frame {jumps[0] + 1}; {count} of its {span.count} rows are wrong",
            where=rows.place(span.start + row, name),
            mend=f"exclude the episode (`exclude_episodes: [{span.episode}]`); `stack mend` numbers it again"
            " where its rows are in order",
            count=count,
            data={"jumps": True, "first": int(own[row]), "right": int(right[span.start + row])},
        )
    wrong = np.flatnonzero(off)
    if len(wrong):
        row = int(wrong[0])
        yield INDEX_GAPS.fault(
            f"{name} is wrong in {len(wrong)} of {rows.count} rows;"
            f" first: it is {numbers[row]}, not {right[row]}",
            where=rows.place(row, name),
            count=len(wrong),
            data={"first": int(numbers[row]), "right": int(right[row])},
        )


def _episodes_in_order(case: Case) -> Iterator[Fault]:
    """In v3.0 loaders take rows by position, so episodes must lie one after another, each in one piece."""
    rows = case.evidence.rows
    if not case.evidence.is_v3:
        return
    for before, after in pairwise(rows.spans):
        if after.episode < before.episode or (after.episode == before.episode and after.file == before.file):
            yield INDEX_GAPS.fault(
                f"rows of episode {after.episode} come after those of episode {before.episode}",
                where=Place(after.file, after.episode, feature="episode_index"),
            )
            return


@check("episode lengths", TOO_SHORT)
def episode_short(case: Case) -> Iterator[Fault]:
    lengths = case.evidence.rows.lengths
    horizon = case.policy.action_horizon if case.policy else HORIZON_LEAST
    short = {episode: length for episode, length in lengths.items() if length < horizon}
    if not short:
        return
    shown = ", ".join(f"{episode} ({length})" for episode, length in list(short.items())[:8])
    message = f"{len(short)} of {len(lengths)} episodes are shorter than {horizon} frames: {shown}"
    data: dict[str, object] = {"lengths": short}
    if case.policy:
        share = padded_share(list(lengths.values()), horizon)
        message += f"; {share:.1%} of all action steps lie past an episode's end"
        data["padded_frac"] = share
    files = {span.episode: span.file for span in reversed(case.evidence.rows.spans)}
    places = tuple(Place(files[e], e) for e in sorted(short, key=lambda e: short[e]))
    yield TOO_SHORT.fault(message, places=places, count=len(short), data=data)


@check("equal episodes", DUPLICATE)
def episodes_equal(case: Case) -> Iterator[Fault]:
    """Episodes whose vector columns are equal bit for bit, or to rounding at some distance."""
    equal: set[tuple[int, int]] = set()
    for fault in _equal_bits(case):
        equal.add((int(fault.data["of"]), fault.where.episode or 0))
        yield fault
    for repeat in repeats(takes_of(case.evidence)):
        pair = repeat.earlier, repeat.later
        if pair not in equal and agree(case.evidence, repeat):
            yield _nearly(case, repeat)


def _nearly(case: Case, repeat: Repeat) -> Fault:
    from stack.audit.checks.deep_copies import same_pictures

    count = case.evidence.rows.lengths[repeat.later]
    which = f"all {count} frames" if repeat.frames == count else f"{repeat.frames} of {count} frames"
    shift = f", {abs(repeat.lag)} frames {'later' if repeat.lag > 0 else 'earlier'}" if repeat.lag else ""
    same = same_pictures(case, repeat) if case.deep else None
    said = {None: "", True: "; the pictures are the same too", False: "; the pictures are others"}
    place = next(Place(s.file, s.episode) for s in case.evidence.rows.spans if s.episode == repeat.later)
    return DUPLICATE.fault(
        f"episode {repeat.later} has, to rounding, the rows of episode {repeat.earlier}{shift} in"
        f" {which}{said[same]}",
        where=place,
        severity="note" if same is False else None,
        data={"of": repeat.earlier, "lag_frames": repeat.lag, "frames": repeat.frames, "same_pictures": same},
    )


def _equal_bits(case: Case) -> Iterator[Fault]:
    rows = case.evidence.rows
    names = [n for n in ("observation.state", "action") if n in rows.columns]
    columns = [values for n in names if (values := rows.columns[n].values) is not None]
    if not columns:
        return
    first: dict[tuple[int, bytes], int] = {}
    for span in rows.spans:
        if span.count < HORIZON_LEAST:
            continue
        blocks = [np.ascontiguousarray(c[span.start : span.start + span.count]) for c in columns]
        if all((block == block[0]).all() for block in blocks):
            continue  # nothing moves: equal for another reason, told as constant channels
        key = (span.count, _digest(blocks))
        if key in first:
            yield DUPLICATE.fault(
                f"episode {span.episode} has the same {' and '.join(names)} as episode {first[key]}"
                f" in all {span.count} frames",
                where=Place(span.file, span.episode),
                data={"of": first[key]},
            )
        first.setdefault(key, span.episode)


def _digest(blocks: list[NDArray[Any]]) -> bytes:
    import hashlib

    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block.tobytes())
    return digest.digest()
