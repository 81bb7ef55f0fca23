"""Held-out episodes: which frames they are, and what the policy makes of them.

The noise and the time of an evaluation are drawn from a frame's own number, so that evaluations of one run,
of any number of devices, compare like with like, and the training's own random stream is not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stack.errors import BadRequest
from stack.manifests.run import Train
from stack.train.objective import TOKENS, TOKENS_MASK, element_losses, real_actions
from stack.train.policy import ACTION

if TYPE_CHECKING:
    from stack.train.session import Session

SALT = 0x5E1F  # keeps the draw of episodes apart from the order of the data, which has the same seed


@dataclass(frozen=True)
class Held:
    """Attributes:
    episodes: the held-out episodes.
    frames: the frames that are evaluated, indices into the dataset.
    """

    episodes: tuple[int, ...]
    frames: tuple[int, ...]


@dataclass(frozen=True)
class Evaluation:
    """Attributes:
    loss: mean over all real actions of the held-out frames.
    errors: channel name -> mean absolute error of the sampled actions, in the dataset's own units.
    frames: how many frames.
    """

    loss: float
    errors: dict[str, float]
    frames: int

    def to_json(self) -> dict[str, Any]:
        return {"loss": self.loss, "frames": self.frames, "action_error": self.errors}


def hold_out(meta: Any, train: Train) -> tuple[Held | None, Any]:
    """The held-out frames, and the frames that are left to train on: int64 (n,), None where all are.

    Raises:
        BadRequest: an episode is not there, or nothing is left on one side.
    """
    import numpy

    if train.holdout is None:
        return None, None
    total = int(meta.total_episodes)
    episodes = _choose(total, train)
    starts = [int(row) for row in meta.episodes["dataset_from_index"]]
    ends = [int(row) for row in meta.episodes["dataset_to_index"]]
    is_held = numpy.zeros(ends[-1], dtype=bool)
    for episode in episodes:
        is_held[starts[episode] : ends[episode]] = True
    out, left = numpy.flatnonzero(is_held), numpy.flatnonzero(~is_held)
    if len(left) == 0:
        raise BadRequest(
            "holdout-takes-all",
            f"all {total} episodes are held out; none is left to train on",
            do="hold fewer out with train.holdout",
        )
    wanted = min(train.holdout.frames, len(out))
    spread = out[numpy.linspace(0, len(out) - 1, wanted).round().astype(int)]
    return Held(episodes, tuple(int(index) for index in spread)), left


def evaluate(session: Session) -> Evaluation:
    """Loss and action error on the held-out frames, shared out over the ranks; equal on all of them.

    With a moving average, its weights are the ones evaluated.
    """
    assert session.held is not None
    frames = session.held.frames[session.ranks.rank :: session.ranks.world]
    average = session.average
    session.policy.eval()
    try:
        if average is None:
            mine = _measure(session, frames)
        else:
            with average.applied():
                mine = _measure(session, frames)
    finally:
        session.policy.train()
    parts = session.ranks.gather(mine)
    count = sum(part[1] for part in parts)
    names = session.channel_names[ACTION]
    errors = [sum(part[2][channel] for part in parts) / count for channel in range(len(names))]
    loss = sum(part[0] for part in parts) / (count * len(names))
    return Evaluation(loss, dict(zip(names, errors, strict=True)), len(session.held.frames))


def _choose(total: int, train: Train) -> tuple[int, ...]:
    import numpy

    assert train.holdout is not None
    if train.holdout.episodes is not None:
        for episode in train.holdout.episodes:
            if not 0 <= episode < total:
                raise BadRequest(
                    "holdout-episode-unknown",
                    f"train.holdout names episode {episode}; the dataset has episodes 0 to {total - 1}",
                )
        return tuple(sorted(train.holdout.episodes))
    assert train.holdout.fraction is not None
    count = max(1, round(train.holdout.fraction * total))
    drawn = numpy.random.RandomState([train.seed % 2**32, SALT]).permutation(total)[:count]
    return tuple(sorted(int(episode) for episode in drawn))


def _measure(session: Session, frames: Sequence[int]) -> tuple[float, int, list[float]]:
    """(sum of losses, real actions, sum of absolute errors of each channel) over some frames."""
    import torch

    from stack.train.batches import Samples, next_batch
    from stack.train.data import Collate

    samples = Samples(session.dataset)
    collate = Collate(
        session.processors.before, session.dataset.meta.camera_keys, session.policy.config.image_resolution
    )
    width = len(session.channel_names[ACTION])
    losses, count, errors = 0.0, 0, torch.zeros(width, dtype=torch.float64)
    size = session.run.train.batch_per_device
    for start in range(0, len(frames), size):
        chosen = frames[start : start + size]
        batch = next_batch(iter([collate([samples[index] for index in chosen])]), session.dataset)
        with torch.no_grad():
            found, real, error = _measure_batch(session, batch, chosen)
        losses, count, errors = losses + found, count + real, errors + error
    return losses, count, errors.tolist()


def _measure_batch(session: Session, batch: Any, frames: Sequence[int]) -> tuple[float, int, Any]:
    from stack.train.step import to_device

    policy, dtype = session.policy, "bfloat16" if session.run.train.master_weights else None
    inputs = to_device(batch.inputs, session.device)
    loss_noise, sample_noise, time = _draw(policy.config, frames, session.device)
    images, masks = policy._preprocess_images(inputs)
    with session.device.autocast(dtype):
        elements = element_losses(policy, inputs, loss_noise, time)
        chunk = policy.model.sample_actions(
            images, masks, inputs[TOKENS], inputs[TOKENS_MASK], noise=sample_noise
        )
    real = real_actions(inputs)
    width = batch.raw[ACTION].shape[-1]
    actions = session.processors.after(chunk[:, :, :width].float().cpu())
    error = (actions - batch.raw[ACTION]).abs().double() * real.cpu().unsqueeze(-1)
    loss = (elements.double() * real.unsqueeze(-1)).sum()
    return float(loss), int(real.sum()), error.sum((0, 1))


def _draw(config: Any, frames: Sequence[int], device: Any) -> tuple[Any, Any, Any]:
    """Noise for the loss and for sampling, (B, horizon, max_action_dim) each, and times (B,)."""
    import numpy
    import torch

    shape = (config.chunk_size, config.max_action_dim)
    noises, starts, times = [], [], []
    for frame in frames:
        draw = numpy.random.RandomState([frame % 2**32, SALT])
        noises.append(draw.standard_normal(shape))
        starts.append(draw.standard_normal(shape))
        beta = draw.beta(config.time_sampling_beta_alpha, config.time_sampling_beta_beta)
        times.append(beta * config.time_sampling_scale + config.time_sampling_offset)
    drawn = (numpy.stack(noises), numpy.stack(starts), numpy.asarray(times))
    return tuple(torch.from_numpy(a.astype(numpy.float32)).to(device.torch) for a in drawn)
