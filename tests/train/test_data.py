"""The order of the data: pure, complete, disjoint; batches that do not depend on the workers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack.errors import WorkFailed
from stack.train.data import Order


def steps(order: Order, first: int, last: int) -> list[list[int]]:
    return list(order.batches(first, last))


def test_epochs_are_complete_and_differ() -> None:
    order = Order(frames=30, batch=4, seed=1000)
    stream = [index for batch in steps(order, 0, 15) for index in batch]
    first, second = stream[:30], stream[30:60]
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second and first != list(range(30))


def test_any_part_equals_the_same_part_of_the_whole() -> None:
    order = Order(frames=17, batch=3, seed=5, accumulation=2)
    whole = steps(order, 0, 40)
    for first in (0, 1, 7, 39):
        assert steps(order, first, 40) == whole[first * 2 :]


@pytest.mark.parametrize(("world", "accumulation", "batch"), [(2, 1, 4), (4, 1, 2), (2, 2, 2), (1, 8, 1)])
def test_ranks_and_accumulation_share_one_stream(world: int, accumulation: int, batch: int) -> None:
    """The same global batch in each step, however it is split; no frame twice in an epoch."""
    alone = steps(Order(frames=64, batch=8, seed=3), 0, 16)
    split = [Order(64, batch, 3, world, rank, accumulation) for rank in range(world)]
    assert split[0].global_batch == 8
    for step in range(16):
        parts = [index for order in split for part in steps(order, step, step + 1) for index in part]
        assert sorted(parts) == sorted(alone[step])


def test_the_seed_decides() -> None:
    assert steps(Order(50, 4, 1), 0, 5) == steps(Order(50, 4, 1), 0, 5)
    assert steps(Order(50, 4, 1), 0, 5) != steps(Order(50, 4, 2), 0, 5)


def test_numbers_are_frozen() -> None:
    """The same on every machine and version: MT19937 and Fisher-Yates, from numpy's frozen generator."""
    import random

    # Python's generator is MT19937 with the same array seeding; its 32-bit words drive the shuffle here.
    words = random.Random()
    words.setstate((3, (*_seeded([1000, 0]), 624), None))
    items = list(range(10))
    for i in reversed(range(1, 10)):
        mask = (1 << i.bit_length()) - 1
        while (j := words.getrandbits(32) & mask) > i:
            pass
        items[i], items[j] = items[j], items[i]
    assert Order(frames=10, batch=1, seed=1000).permutation(0).tolist() == items


def _seeded(key: list[int]) -> list[int]:
    """init_by_array of Matsumoto and Nishimura's mt19937ar.c."""
    mt = [19650218]
    for i in range(1, 624):
        mt.append((1812433253 * (mt[-1] ^ (mt[-1] >> 30)) + i) & 0xFFFFFFFF)
    i, j = 1, 0
    for _ in range(624):
        mt[i] = ((mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1664525)) + key[j] + j) & 0xFFFFFFFF
        i, j = i + 1, (j + 1) % len(key)
        if i == 624:
            mt[0], i = mt[623], 1
    for _ in range(623):
        mt[i] = ((mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1566083941)) - i) & 0xFFFFFFFF
        i += 1
        if i == 624:
            mt[0], i = mt[623], 1
    mt[0] = 0x80000000
    return mt


@pytest.mark.lerobot
def test_batches_are_right_and_do_not_depend_on_workers(toys: Any, world: Any, torch_module: Any) -> None:
    """Every value against what the recorder was given; and with two workers, bit for bit the same."""
    import numpy

    from stack.train.data import Collate, loader, open_dataset
    from stack.train.policy import build_processors, make_config

    run = toys.run_manifest().manifest
    dataset = open_dataset(world.dataset, run.policy.action_horizon)
    config = make_config(run.policy, run.train)
    config.input_features, config.output_features = _features(dataset.meta)
    processors = build_processors(config, dataset.meta.stats, world.mirror / "toy-tokenizer")
    collate = Collate(processors.before, dataset.meta.camera_keys, (56, 56))
    order = Order(dataset.num_frames, 4, run.train.seed)

    def batches(workers: int) -> list[Any]:
        train = run.train.model_copy(update={"workers": workers})
        return list(loader(dataset, order, collate, train, first_step=0, last_step=3))

    alone, helped = batches(0), batches(2)
    for batch, indices in zip(alone, steps(order, 0, 3), strict=True):
        assert batch.places["index"].tolist() == indices
        for row, index in enumerate(indices):
            episode, frame = divmod(index, toys.LENGTH)
            assert batch.places["episode_index"][row] == episode
            assert batch.places["frame_index"][row] == frame
            numpy.testing.assert_allclose(
                batch.raw["observation.state"][row].numpy(), toys.state_at(episode, frame), rtol=1e-6
            )
            for ahead in range(10):
                last = min(frame + ahead, toys.LENGTH - 1)
                numpy.testing.assert_allclose(
                    batch.raw["action"][row, ahead].numpy(), toys.state_at(episode, last), rtol=1e-6
                )
    for one, two in zip(alone, helped, strict=True):
        assert one.inputs.keys() == two.inputs.keys()
        for key, value in one.inputs.items():
            if torch_module.is_tensor(value):
                assert value.equal(two.inputs[key]), key


def _features(meta: Any) -> tuple[Any, Any]:
    from lerobot.configs.types import FeatureType, PolicyFeature

    inputs = {"observation.state": PolicyFeature(FeatureType.STATE, (16,))}
    inputs |= {key: PolicyFeature(FeatureType.VISUAL, (3, 56, 56)) for key in meta.camera_keys}
    return inputs, {"action": PolicyFeature(FeatureType.ACTION, (16,))}


@pytest.mark.lerobot
def test_no_dataset_never_asks_a_hub(toys: Any, world: Any, tmp_path: Path) -> None:
    from stack.errors import BadRequest
    from stack.train.job import make_job

    missing = tmp_path / "nowhere"
    with pytest.raises(BadRequest, match="no dataset here"):
        make_job(
            toys.run_manifest().manifest,
            dataset=missing,
            mirror=world.mirror,
            models=world.models,
            out=tmp_path,
        )
    assert not missing.exists()


def test_what_a_worker_raised_is_said_and_not_only_that_it_did(torch_module: Any) -> None:
    """As torch hands it over, by its own wrapper; memory stays memory."""
    from torch._utils import ExceptionWrapper

    from stack.train.batches import told_of_dead_workers

    def raised(error: Exception) -> Any:
        try:
            raise error
        except Exception:
            return ExceptionWrapper(where="in DataLoader worker process 0")

    full = RuntimeError("unable to open shared memory object: Too many open files (24)")
    words = re.escape(f"a loader's worker failed: RuntimeError: {full}")
    with pytest.raises(WorkFailed, match=words) as caught, told_of_dead_workers():
        raised(full).reraise()
    assert caught.value.id == "loader-worker-failed"
    with pytest.raises(MemoryError), told_of_dead_workers():
        raised(MemoryError("no")).reraise()


@pytest.mark.parametrize(
    "error",
    [
        EOFError(),
        ConnectionResetError(104, "Connection reset by peer"),
        ConnectionRefusedError(111, "Connection refused"),
        FileNotFoundError(2, "No such file or directory", "/tmp/pymp-1/listener-2"),
        OSError(24, "Too many open files"),
        RuntimeError("received 0 items of ancdata"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_batch_that_a_worker_cannot_hand_over_ends_with_our_words(error: Exception) -> None:
    """As Python's and torch's own ways of handing a descriptor over fail, by their sources."""
    from stack.train.batches import next_batch

    with pytest.raises(WorkFailed, match=type(error).__name__) as caught:
        next_batch(_fails(error), dataset=None)
    assert caught.value.id == "loader-handover-failed"


def test_what_is_not_of_handing_over_is_left_as_it_is() -> None:
    """The judges of memory, of connections to outside and of dead workers look at the error itself."""
    from stack.train.batches import next_batch
    from stack.train.offline import OutsideConnection

    for error in (
        OSError(12, "Cannot allocate memory"),
        OutsideConnection("socket.getaddrinfo hub.invalid"),
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."),
    ):
        with pytest.raises(type(error)) as caught:
            next_batch(_fails(error), dataset=None)
        assert caught.value is error


def _fails(error: Exception) -> Iterator[Any]:
    raise error
    yield
