"""From a prepared dataset to batches: order, loading and processing.

The order is a pure function of the seed and of a position in an endless stream: epoch after epoch, each a
permutation of all frames. Step, rank and accumulation only say which positions a batch takes, so that the
ranks are disjoint, an epoch is complete, and a resumed run goes on where it stopped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.manifests.run import Train
from stack.train import dataset_check, lines
from stack.train.ahead import AheadLoader
from stack.train.batches import Batch, Samples, Unreadable
from stack.train.frames import FrameReader
from stack.train.policy import ACTION, STATE

PREFETCH = 4  # batches that each worker has ready: one slow video does not show
PLACE_KEYS = ("index", "episode_index", "frame_index")


def open_dataset(root: Path, horizon: int) -> Any:
    """lerobot's reader on a local folder; each sample has `horizon` actions from its own frame on.

    Raises:
        BadRequest: a file of the dataset is not there, or lerobot cannot read it.
    """
    lines.modeling()
    from lerobot.datasets.lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata

    lines.install_decoder(FrameReader())

    repo_id = f"local/{root.name}"
    dataset_check.check_metadata(root)
    with dataset_check.told_of_what_lerobot_cannot_read(root):
        meta = LeRobotDatasetMetadata(repo_id, root=root)
        dataset_check.check_episodes(meta, horizon)
        return LeRobotDataset(
            repo_id,
            root=root,
            delta_timestamps={ACTION: [step / meta.fps for step in range(horizon)]},
            video_backend="pyav",
        )


@dataclass(frozen=True)
class Order:
    """The frames that each batch takes.

    Attributes:
        frames: frames in the dataset.
        batch: frames of one batch on one device.
        world, rank: devices, and which of them this is.
        accumulation: batches of a step on one device.
        chosen: the dataset's indices of these frames, int64 (frames,); None: all of a dataset.
    """

    frames: int
    batch: int
    seed: int
    world: int = 1
    rank: int = 0
    accumulation: int = 1
    chosen: Any = None

    @property
    def global_batch(self) -> int:
        return self.batch * self.world * self.accumulation

    def permutation(self, epoch: int) -> Any:
        """All frames once, in the order of `epoch`: int64 (frames,).

        numpy's RandomState is frozen: its numbers are the same on every version and machine.
        """
        import numpy

        return numpy.random.RandomState([self.seed % 2**32, epoch]).permutation(self.frames)

    def block(self, step: int, micro: int) -> int:
        """The number of a batch in the stream that all ranks share: this rank's `micro`-th of a step."""
        return (step * self.accumulation + micro) * self.world + self.rank

    def noise_seed(self, step: int, micro: int) -> int:
        """What the noise of that batch is drawn from.

        A function of the seed and of the batch's frames, like the order itself: neither the number of ranks,
        nor a resume, nor an evaluation in between changes it.
        """
        import numpy

        sequence = numpy.random.SeedSequence([self.seed % 2**32, self.block(step, micro)])
        return int(sequence.generate_state(1, numpy.uint64)[0] >> 1)

    def batches(self, first_step: int, last_step: int) -> Iterator[list[int]]:
        """This rank's batches for steps `first_step` (0-based) to `last_step`, half-open: dataset indices."""
        epoch, order = -1, None
        for micro in range(first_step * self.accumulation, last_step * self.accumulation):
            start = self.block(0, micro) * self.batch
            indices = []
            for position in range(start, start + self.batch):
                if position // self.frames != epoch or order is None:
                    epoch = position // self.frames
                    order = self.permutation(epoch)
                frame = int(order[position % self.frames])
                indices.append(frame if self.chosen is None else int(self.chosen[frame]))
            yield indices

    def frames_of(self, step: int, micro: int) -> list[int]:
        """The dataset's indices of this rank's `micro`-th batch of a step (0-based)."""
        return next(itertools.islice(self.batches(step, step + 1), micro, None))


@dataclass(frozen=True)
class Collate:
    """Makes samples into a `Batch`; runs in the loader's workers, off the device's path.

    Attributes:
        before: lerobot's pipeline: normalise, prompt, tokenise.
        size: (height, width) that the policy takes; pictures are brought to it by the policy's own
            rule, which then has nothing left to do.
    """

    before: Any
    cameras: Sequence[str]
    size: tuple[int, int]

    def __call__(self, samples: list[Any]) -> Batch | Unreadable:
        from torch.utils.data import default_collate

        for sample in samples:
            if isinstance(sample, Unreadable):
                return sample
        batch = default_collate(samples)
        for camera in self.cameras:
            batch[camera] = lines.resize(lines.as_unit_floats(batch[camera]), self.size)
        places = {key: batch[key] for key in PLACE_KEYS}
        raw = {key: batch[key].clone() for key in (STATE, ACTION)}
        inputs = self.before(batch)
        # What is not finite has a guard of its own, which looks at the loss.
        sizes = [inputs[key].abs().nan_to_num(nan=0.0, posinf=0.0).amax() for key in (STATE, ACTION)]
        return Batch(inputs, places, raw, max(map(float, sizes)))


class _Schedule:
    """A batch sampler over a fixed range of steps."""

    def __init__(self, order: Order, first_step: int, last_step: int) -> None:
        self.order, self.first_step, self.last_step = order, first_step, last_step

    def __iter__(self) -> Iterator[list[int]]:
        return self.order.batches(self.first_step, self.last_step)

    def __len__(self) -> int:
        return (self.last_step - self.first_step) * self.order.accumulation


def loader(
    dataset: Any, order: Order, collate: Collate, train: Train, *, first_step: int, last_step: int
) -> Any:
    """An iterable over the batches of a range of steps, in order, whatever the worker count.

    With workers, the next batch is taken over from them while the device works: see `stack.train.ahead`.
    """
    import torch

    # A private generator: the loader draws a seed for its workers, which must not come out of the stream
    # that the policy draws its noise from, or a resumed run would see other noise.
    generator = torch.Generator().manual_seed(order.seed)
    workers = train.workers
    batches = torch.utils.data.DataLoader(
        Samples(dataset),
        batch_sampler=_Schedule(order, first_step, last_step),
        collate_fn=collate,
        num_workers=workers,
        generator=generator,
        prefetch_factor=PREFETCH if workers else None,
        worker_init_fn=_one_thread if workers else None,
    )
    return AheadLoader(batches, train.data_timeout_s) if workers else batches


def _one_thread(_worker: int) -> None:
    import torch

    torch.set_num_threads(1)
