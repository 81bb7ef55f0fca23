"""A moving average of the trained weights: `average = decay * average + (1 - decay) * weights` a step.

It starts at the weights themselves, as openpi's does, and is kept in float32 whatever the policy's dtype:
with a decay of 0.999, a bfloat16 average would not move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Average:
    """The average of `named` (parameter name -> tensor); float32, on the parameters' own device."""

    def __init__(self, named: Mapping[str, Any], decay: float) -> None:
        import torch

        self.decay, self._named = decay, dict(named)
        self.values = {name: p.detach().to(torch.float32, copy=True) for name, p in self._named.items()}

    def update(self) -> None:
        """Take one step's weights in."""
        for name, parameter in self._named.items():
            average = self.values[name]
            average.lerp_(parameter.detach().to(average.dtype), 1 - self.decay)

    def load(self, values: Mapping[str, Any]) -> None:
        for name, average in self.values.items():
            average.copy_(values[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within it the policy has the averaged weights."""
        own = {name: parameter.detach().clone() for name, parameter in self._named.items()}
        try:
            for name, parameter in self._named.items():
                parameter.data.copy_(self.values[name])
            yield
        finally:
            for name, parameter in self._named.items():
                parameter.data.copy_(own[name])
