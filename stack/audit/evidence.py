"""The evidence: what lies in a dataset's folder, as it stands.

Nothing here trusts info.json, and nothing here raises on bad input: what cannot be read becomes a `Problem`,
which the checks turn into faults. `stack.dataset.read` makes a dataset of the same files; this module keeps
what that one has to smooth over: stored types, shapes, orders, and files that nobody listed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stack.audit.clips import ClipSpan, clip_spans, probe_videos
from stack.audit.declared import declared_features
from stack.audit.layout import Layout, locate
from stack.audit.rows import NotRead, Rows
from stack.audit.rows_load import load_rows
from stack.audit.tables import TaskTable, compact, read_json_lines, read_parquet, table_rows, task_table
from stack.audit.trouble import Problem, Trouble, classify_file, parse_json
from stack.dataset.memory import give_back
from stack.dataset.model import Feature

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stack.audit.checks.deep_files import Decoded
    from stack.audit.exact import Channel
    from stack.dataset.stats import Stats
    from stack.dataset.video import VideoInfo

DOUBTS_SHOWN = 3


@dataclass(frozen=True)
class EpisodeEntry:
    """A line of episodes.jsonl or a row of meta/episodes, at its position.

    Attributes:
        index, length: None where absent or not a whole number.
        tasks: as stored.
        raw: the whole entry without statistics.
    """

    position: int
    file: str
    index: int | None
    length: int | None
    tasks: Any
    raw: dict[str, Any]


@dataclass(frozen=True)
class EpisodeStats:
    """Statistics stored for one episode: feature -> statistic -> value as stored."""

    episode: int | None
    file: str
    stats: dict[str, dict[str, Any]]


@dataclass
class Evidence:
    """Reads on demand and keeps what was read.

    Attributes:
        problems: grows as files are opened.
        closed: folders that could not be listed.
        form_only: leave columns of vectors, statistics of episodes and video files on disk; memory then
            hardly grows with the frames. A check that asks for them gets `NotRead`.
        usable, exact, channels, decoded: kept for `stack.audit.exact` and `checks.deep_files`.
    """

    root: Path
    form_only: bool = False
    problems: list[Problem] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    usable: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    exact: dict[str, Stats] = field(default_factory=dict)
    channels: list[Channel] | None = None
    decoded: Decoded | None = None

    @cached_property
    def files(self) -> dict[str, int]:
        """All regular files (links followed) by POSIX path relative to the root, with their size in bytes."""
        found: dict[str, int] = {}
        seen = {os.path.realpath(self.root)}
        for folder, inner, names in os.walk(self.root, onerror=self._closed, followlinks=True):
            # A link to a folder above would be walked for ever.
            inner[:] = [name for name in inner if os.path.realpath(os.path.join(folder, name)) not in seen]
            seen.update(os.path.realpath(os.path.join(folder, name)) for name in inner)
            for name in names:
                path = Path(folder, name)
                relative = path.relative_to(self.root).as_posix()
                try:
                    known = path.stat()
                except OSError as error:
                    self.problems.append(Problem(relative, Trouble.UNREADABLE, str(error)))
                    continue
                if stat.S_ISREG(known.st_mode):
                    found[relative] = known.st_size
                else:  # opening a pipe waits for somebody to write into it
                    said = "it is no file but a pipe, a socket or a device"
                    self.problems.append(Problem(relative, Trouble.UNREADABLE, said))
        return dict(sorted(found.items()))

    def _closed(self, error: OSError) -> None:
        """A folder that may not be listed: what lies in it is not missing, but unknown."""
        folder = Path(error.filename or self.root)
        relative = (
            folder.relative_to(self.root).as_posix() if folder.is_relative_to(self.root) else str(folder)
        )
        self.closed.append(relative)
        said = f"the folder cannot be listed ({error.strerror}); what lies in it was not checked"
        self.problems.append(Problem(relative, Trouble.UNREADABLE, said))

    @cached_property
    def info(self) -> dict[str, Any]:
        """info.json, or an empty mapping."""
        if "meta/info.json" not in self.files:
            return {}
        try:
            info = self._parsed("meta/info.json", nan_is_doubtful=True)
        except (OSError, ValueError) as error:
            self.problems.append(self.explain("meta/info.json", error))
            return {}
        if isinstance(info, dict):
            return info
        kind = type(info).__name__
        self.problems.append(Problem("meta/info.json", Trouble.NOT_JSON, f"it holds a {kind}, not an object"))
        return {}

    def _parsed(self, relative: str, *, nan_is_doubtful: bool = False) -> Any:
        text = (self.root / relative).read_text(encoding="utf-8")
        doubts: list[str] = []
        value = parse_json(text, doubts=doubts, nan_is_doubtful=nan_is_doubtful)
        self.doubt(relative, doubts)
        return value

    def doubt(self, relative: str, doubts: list[str], line: int | None = None) -> None:
        """Note what readers of a JSON text understand differently."""
        doubts = list(dict.fromkeys(doubts))
        if doubts:
            more = f"; and {len(doubts) - DOUBTS_SHOWN} more" if len(doubts) > DOUBTS_SHOWN else ""
            said = "; ".join(doubts[:DOUBTS_SHOWN]) + more
            self.problems.append(Problem(relative, Trouble.DOUBTFUL_JSON, said, line))

    def explain(self, relative: str, error: Exception) -> Problem:
        """The most telling reason why a file could not be read."""
        return classify_file(self.root, relative, error)

    @cached_property
    def version(self) -> str | None:
        """The layout on disk: `v3.0`, `v2.1`, `v2.0`, or None where no layout can be made out."""
        names = self.files
        if any(n.startswith("meta/episodes/") for n in names) or "meta/tasks.parquet" in names:
            return "v3.0"
        if "meta/episodes_stats.jsonl" in names:
            return "v2.1"
        if "meta/episodes.jsonl" in names:
            declared = self.info.get("codebase_version")
            return "v2.1" if declared == "v2.1" else "v2.0"
        declared = self.info.get("codebase_version")
        return declared if declared in ("v2.0", "v2.1", "v3.0") else None

    @property
    def is_v3(self) -> bool:
        return self.version == "v3.0"

    @cached_property
    def fps(self) -> float | None:
        fps = self.info.get("fps")
        if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < 1e6:
            return None
        return float(fps)

    @cached_property
    def features(self) -> dict[str, Feature]:
        return declared_features(self.info)

    @property
    def cameras(self) -> list[str]:
        return [name for name, feature in self.features.items() if feature.dtype == "video"]

    @cached_property
    def episodes(self) -> list[EpisodeEntry]:
        return list(self._episodes_v3() if self.is_v3 else self._episodes_v2())

    def _episodes_v2(self) -> Iterator[EpisodeEntry]:
        file = "meta/episodes.jsonl"
        for position, entry in enumerate(read_json_lines(self, file)):
            raw = entry if isinstance(entry, dict) else {}
            index, length = whole(raw.get("episode_index")), whole(raw.get("length"))
            yield EpisodeEntry(position, file, index, length, raw.get("tasks"), raw)

    def _episodes_v3(self) -> Iterator[EpisodeEntry]:
        position = 0
        for file, rows in self._episode_tables:
            for raw in rows:
                # Without statistics there, the entry itself: a copy of each would be kept beside it.
                light = (
                    raw
                    if self.form_only
                    else {key: value for key, value in raw.items() if not key.startswith("stats/")}
                )
                index, length = whole(raw.get("episode_index")), whole(raw.get("length"))
                yield EpisodeEntry(position, file, index, length, raw.get("tasks"), light)
                position += 1

    @cached_property
    def _episode_tables(self) -> list[tuple[str, list[dict[str, Any]]]]:
        names = [n for n in self.files if n.startswith("meta/episodes/") and n.endswith(".parquet")]
        tables = []
        for name in names:
            table = read_parquet(self, name, without="stats/" if self.form_only else None)
            tables.append((name, [] if table is None else table_rows(table)))
        if self.form_only:
            give_back()
        return tables

    @cached_property
    def tasks(self) -> TaskTable:
        return task_table(self)

    @cached_property
    def stats(self) -> dict[str, dict[str, Any]] | None:
        """stats.json, or None where it is absent or unreadable. NaN and Infinity are kept as floats."""
        if "meta/stats.json" not in self.files:
            return None
        try:
            stats = self._parsed("meta/stats.json")
        except (OSError, ValueError) as error:
            self.problems.append(self.explain("meta/stats.json", error))
            return None
        if not isinstance(stats, dict):
            self.problems.append(Problem("meta/stats.json", Trouble.NOT_JSON, "it is not an object"))
            return None
        return {name: entry for name, entry in stats.items() if isinstance(entry, dict)}

    @cached_property
    def provenance(self) -> dict[str, Any] | None:
        """meta/provenance.json, which `stack prepare` writes; None where there is none."""
        name = "meta/provenance.json"
        if name not in self.files:
            return None
        try:
            provenance = self._parsed(name)
        except (OSError, ValueError) as error:
            self.problems.append(self.explain(name, error))
            return None
        if isinstance(provenance, dict):
            return provenance
        self.problems.append(Problem(name, Trouble.NOT_JSON, "it is not an object"))
        return None

    @cached_property
    def episode_stats(self) -> list[EpisodeStats]:
        if self.form_only:
            raise NotRead
        return list(self._episode_stats_v3() if self.is_v3 else self._episode_stats_v2())

    def _episode_stats_v2(self) -> Iterator[EpisodeStats]:
        file = "meta/episodes_stats.jsonl"
        for entry in read_json_lines(self, file):
            entry = entry if isinstance(entry, dict) else {}
            stats = entry.get("stats")
            stats = stats if isinstance(stats, dict) else {}
            kept = {
                name: {stat: compact(value) for stat, value in own.items()}
                for name, own in stats.items()
                if isinstance(own, dict)
            }
            yield EpisodeStats(whole(entry.get("episode_index")), file, kept)

    def _episode_stats_v3(self) -> Iterator[EpisodeStats]:
        for file, rows in self._episode_tables:
            for raw in rows:
                stats: dict[str, dict[str, Any]] = {}
                for key, value in raw.items():
                    head, _, rest = key.partition("/")
                    name, _, stat = rest.rpartition("/")
                    if head == "stats" and name and value is not None:
                        stats.setdefault(name, {})[stat] = value
                yield EpisodeStats(whole(raw.get("episode_index")), file, stats)

    @cached_property
    def layout(self) -> Layout:
        return locate(self)

    @cached_property
    def rows(self) -> Rows:
        rows = load_rows(self)
        if self.form_only:
            give_back()
        return rows

    @cached_property
    def clips(self) -> dict[str, list[ClipSpan]]:
        """For each video camera, its clips by episode, as the metadata say."""
        return clip_spans(self)

    @cached_property
    def videos(self) -> dict[str, VideoInfo]:
        if self.form_only:
            raise NotRead
        return probe_videos(self)


def whole(value: Any) -> int | None:
    """The whole number that `value` is, also when it is stored as a double; else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if value == value and abs(value) < 2**62 and int(value) == value else None
