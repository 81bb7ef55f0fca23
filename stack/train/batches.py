"""What comes out of a loader: a batch, or the reason why there is none, with the episode and the frame."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stack.devices import is_out_of_memory
from stack.errors import StackError, WorkFailed
from stack.train.ahead import NothingCame
from stack.train.offline import OutsideConnection

DEATH_TOLD_S = 0.2


@dataclass(frozen=True)
class Batch:
    """What a step takes.

    Attributes:
        inputs: what the policy's forward wants, on the cpu.
        places: `index`, `episode_index` and `frame_index` of each sample, int64 (B,).
        raw: state (B, D) and actions (B, horizon, D) before normalisation, for the guard.
        furthest: the largest magnitude of a normalised state or action that is a number; 98 % are within 1.
    """

    inputs: dict[str, Any]
    places: dict[str, Any]
    raw: dict[str, Any]
    furthest: float = 0.0


@dataclass(frozen=True)
class Unreadable:
    """A sample that could not be read; it travels in place of a batch, for an error loses itself on the way
    out of a worker.
    """

    index: int
    why: str


@dataclass(frozen=True)
class Samples:
    """A dataset whose errors come out as `Unreadable`."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            words = str(error).strip().splitlines() or [""]
            place = f" ({error.where})" if isinstance(error, StackError) and error.where else ""
            return Unreadable(index, f"{type(error).__name__}: {words[0]}{place}")


def sample_of(dataset: Any, index: int) -> Any:
    """A raw sample of lerobot's reader.

    Raises:
        WorkFailed: it cannot be read.
    """
    sample = Samples(dataset)[index]
    if isinstance(sample, Unreadable):
        raise _unreadable(dataset, sample)
    return sample


def next_batch(batches: Iterator[Any], dataset: Any, wanted: Callable[[], Sequence[int]] = tuple) -> Batch:
    """The loader's next batch.

    Args:
        wanted: the dataset's indices of its frames; asked where it does not come.

    Raises:
        WorkFailed: a sample cannot be read, nothing has come for `data_timeout_s`, or a worker could not hand
            over what it made.
    """
    try:
        batch = next(batches)
    except NothingCame as error:
        places = ", ".join(_place(dataset, index) for index in wanted())
        raise WorkFailed(
            "loader-stuck",
            f"no batch has come from the loader's workers for {error.seconds:g} s (train.data_timeout_s)"
            + (f"; it is that of {places}" if places else ""),
            where=str(dataset.root),
            do="a worker hangs, most likely on a file that its disk or share does not give: look at that, "
            "then go on with --resume",
        ) from error
    except (EOFError, OSError, RuntimeError) as error:
        if not _is_of_handing_over(error):
            raise
        # Where the worker has died, torch says so out of a signal handler, which may come a moment later.
        time.sleep(DEATH_TOLD_S)
        words = f"{type(error).__name__}: {error}".rstrip(": ")
        raise WorkFailed(
            "loader-handover-failed",
            f"a batch could not be taken over from a loader's worker: {words}",
            do="most likely, one of the two may open no more files: raise that limit (ulimit -n) or lower "
            "train.workers, then go on with --resume",
        ) from error
    if isinstance(batch, Unreadable):
        raise _unreadable(dataset, batch)
    assert isinstance(batch, Batch)
    return batch


def _is_of_handing_over(error: BaseException) -> bool:
    """Whether it is of the socket through which a worker's tensors come.

    What the dataset raised is none of these: it travels as `Unreadable`. torch's own words for a descriptor
    that this process could not take are "received 0 items of ancdata".
    """
    if is_out_of_memory(error) or isinstance(error, OutsideConnection):
        return False
    return isinstance(error, EOFError | OSError) or "ancdata" in str(error)


@contextmanager
def told_of_dead_workers() -> Iterator[None]:
    """Turn torch's errors for a loader's worker that has died, or has failed, into ours.

    torch raises the first out of a signal handler: wherever the training happens to be.

    Raises:
        WorkFailed: a loader's worker has died, or what it raised.
    """
    try:
        yield
    except Exception as error:
        if "DataLoader worker" not in str(error) or is_out_of_memory(error):
            raise
        said = str(error).strip().splitlines()
        words = said[0]
        if words.startswith("Caught "):
            raise WorkFailed(
                "loader-worker-failed", f"a loader's worker failed: {said[-1].strip()}"
            ) from error
        is_bus_error = "Bus error" in str(error)
        raise WorkFailed(
            "loader-worker-died",
            f"a loader's worker has died: {words}",
            do="give the container more shared memory (--shm-size), or lower train.workers"
            if is_bus_error
            else "go on with --resume; if it was killed for memory, lower train.workers",
        ) from error


def _unreadable(dataset: Any, sample: Unreadable) -> WorkFailed:
    return WorkFailed(
        "sample-unreadable",
        f"{_place(dataset, sample.index)} cannot be read: {sample.why}",
        where=str(dataset.root),
        do="run 'stack audit --deep' on the dataset, and prepare it anew without that episode",
    )


def _place(dataset: Any, index: int) -> str:
    starts = [int(start) for start in dataset.meta.episodes["dataset_from_index"]]
    episode = max(0, bisect.bisect_right(starts, index) - 1)
    return f"episode {episode} frame {index - starts[episode]} (row {index})"
