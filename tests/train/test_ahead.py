"""Batches fetched ahead: the same items, the same error in the same place, and no thread left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest

from stack.train.ahead import Ahead, AheadLoader, NothingCame


def numbers(count: int, taken: list[int], error: Exception | None = None) -> Iterator[int]:
    for number in range(count):
        taken.append(number)
        yield number
    if error is not None:
        raise error


OTHERS: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def only_own_threads_count() -> None:
    """An earlier test of this process may have left one that hangs, by its nature."""
    OTHERS.clear()
    OTHERS.update(threading.enumerate())


def threads() -> list[threading.Thread]:
    return [
        thread for thread in threading.enumerate() if thread.name == "next-batch" and thread not in OTHERS
    ]


def gone(seconds: float = 5) -> bool:
    until = time.monotonic() + seconds
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    return not threads()


def test_items_come_in_order_and_end() -> None:
    ahead = iter(AheadLoader(range(200)))
    assert list(ahead) == [*range(200)]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(ahead)
    assert gone()


def test_an_error_comes_after_what_stood_before_it() -> None:
    ahead = Ahead(numbers(3, [], ValueError("the disk says no")))
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the disk says no"):
        next(ahead)


def test_it_is_ahead_by_a_bound() -> None:
    taken: list[int] = []
    ahead = Ahead(numbers(100, taken))
    assert next(ahead) == 0
    time.sleep(0.2)
    assert len(taken) == 3  # one given, one ready, one in the thread's hand
    ahead.close()
    assert gone()


def test_dropping_it_ends_its_thread() -> None:
    ahead = Ahead(numbers(100, []))
    assert next(ahead) == 0
    del ahead
    gc.collect()
    assert gone()


def test_waiting_for_data_is_hidden_behind_the_step() -> None:
    """Taking over costs 20 ms here, and a step 40 ms: what is left to wait is much less than either."""

    def slow() -> Iterator[int]:
        for number in range(12):
            time.sleep(0.02)
            yield number

    ahead, waits_s = Ahead(slow()), []
    for _ in range(12):
        asked = time.perf_counter()
        next(ahead)
        waits_s.append(time.perf_counter() - asked)
        time.sleep(0.04)
    assert sorted(waits_s)[6] < 0.01


def test_what_does_not_come_is_told_in_time() -> None:
    """And nobody waits for the thread that hangs with it."""
    release = threading.Event()

    def hangs() -> Iterator[int]:
        yield 0
        release.wait(60)

    ahead = Ahead(hangs(), timeout_s=0.2)
    assert next(ahead) == 0
    began = time.monotonic()
    with pytest.raises(NothingCame, match=r"within 0\.2 s"):
        next(ahead)
    ahead.close()
    assert time.monotonic() - began < 3
    release.set()
    assert gone()
