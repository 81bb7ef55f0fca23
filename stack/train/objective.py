"""pi0.5's flow-matching loss, element by element, so that actions past an episode's end can be left out.

lerobot's own `forward` averages over all of them. Its noise, its time, its model and their order of drawing
are used here, so that with `padded_actions: trained` the losses are lerobot's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from stack.devices import Device
from stack.errors import BadRequest
from stack.manifests.run import RunManifest

PADDED = "action_is_pad"
TOKENS = "observation.language.tokens"
TOKENS_MASK = "observation.language.attention_mask"


def make_objective(policy: Any, run: RunManifest, device: Device) -> Any:
    """A module over `policy` (a `PI05Policy`) whose forward gives a batch's loss.

    forward: inputs -> (loss to descend, sum of the counted losses, how many were counted, loss of each
    action channel (D,)); all but the first are detached. Masked, the descended loss divides by all
    elements, padded ones included: each real action then weighs the same in any batch, however it is split
    over devices. The reported loss is sum over count.
    """
    dtype = "bfloat16" if run.train.master_weights else None
    is_masked = run.train.padded_actions == "masked"
    return _objective_class()(policy, is_masked, lambda: device.autocast(dtype))


def element_losses(policy: Any, inputs: Mapping[str, Any], noise: Any = None, time: Any = None) -> Any:
    """Squared error of the velocity, (B, horizon, D), D the dataset's action width.

    Args:
        noise: (B, horizon, max_action_dim), and `time`: (B,); drawn as lerobot draws them where not given.
    """
    images, masks = policy._preprocess_images(inputs)
    actions = policy.prepare_action(inputs)
    if noise is None:
        noise = policy.model.sample_noise(actions.shape, actions.device)
    if time is None:
        time = policy.model.sample_time(actions.shape[0], actions.device)
    losses = policy.model.forward(images, masks, inputs[TOKENS], inputs[TOKENS_MASK], actions, noise, time)
    return losses[:, :, : policy.config.output_features["action"].shape[0]]


def real_actions(inputs: Mapping[str, Any]) -> Any:
    """Which actions lie within their episode: bool (B, horizon).

    Raises:
        BadRequest: the reader does not say.
    """
    if PADDED not in inputs:
        raise BadRequest(
            "padding-unknown",
            "the reader does not say which actions lie past an episode's end, so they cannot be masked",
            do="set train.padded_actions: trained",
        )
    return ~inputs[PADDED]


@lru_cache(maxsize=1)
def _objective_class() -> type[Any]:
    from torch import nn

    class Objective(nn.Module):  # type: ignore[misc]
        def __init__(self, policy: Any, is_masked: bool, autocast: Any) -> None:
            super().__init__()
            self.policy, self.is_masked, self.autocast = policy, is_masked, autocast

        def forward(self, inputs: Mapping[str, Any]) -> tuple[Any, Any, int, Any]:
            with self.autocast():
                losses = element_losses(self.policy, inputs)
            if not self.is_masked:
                loss = losses.mean()
                return loss, loss.detach() * losses.numel(), losses.numel(), losses.detach().mean((0, 1))
            real = real_actions(inputs)
            kept = losses.masked_fill(~real.unsqueeze(-1), 0)
            total = kept.sum()
            count = real.sum() * losses.shape[-1]
            return total / losses.numel(), total.detach(), count, kept.detach().mean((0, 1))

    return Objective
