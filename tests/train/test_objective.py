"""The loss, element by element: what lies past an episode's end does not count, and nothing else is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from stack.train.objective import element_losses

pytestmark = pytest.mark.lerobot


@pytest.fixture(scope="module")
def opened(toys: Any, world: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A session, and a batch of which two samples reach past their episode's end."""
    from stack.devices import open_device
    from stack.train.data import Collate
    from stack.train.ranks import Ranks
    from stack.train.session import open_session

    job = toys.make_job(world, tmp_path_factory.mktemp("objective"))
    session = open_session(job, open_device("cpu"), Ranks(), lambda _kind, **_details: None)
    collate = Collate(session.processors.before, session.dataset.meta.camera_keys, (56, 56))
    frames = [3, toys.LENGTH - 4, 2 * toys.LENGTH - 1, 2 * toys.LENGTH]
    return session, collate([session.dataset[frame] for frame in frames])


def objective(session: Any, padded: str, toys: Any) -> Any:
    from stack.train.objective import make_objective

    run = toys.run_manifest(train={"padded_actions": padded}).manifest
    return make_objective(session.policy, run, session.device)


def test_masked_is_the_sum_over_real_actions_by_hand(opened: Any, toys: Any) -> None:
    import torch

    session, batch = opened
    torch.manual_seed(5)
    elements = element_losses(session.policy, batch.inputs).detach().numpy().astype(numpy.float64)
    assert elements.shape == (4, 10, toys.WIDTH)
    # Frame 20 of 24 has 4 actions left, frame 23 has 1.
    total, count = 0.0, 0
    for sample, left in enumerate((10, 4, 1, 10)):
        for ahead in range(left):
            for channel in range(toys.WIDTH):
                total, count = total + elements[sample, ahead, channel], count + 1
    torch.manual_seed(5)
    loss, summed, counted, by_channel = objective(session, "masked", toys)(batch.inputs)
    assert int(counted) == count == 25 * toys.WIDTH
    assert float(summed) == pytest.approx(total, rel=1e-5)
    assert float(loss.detach()) == pytest.approx(total / elements.size, rel=1e-5)
    assert float(by_channel.sum()) == pytest.approx(total / 40, rel=1e-5)


def test_trained_is_lerobots_own_forward(opened: Any, toys: Any) -> None:
    import torch

    session, batch = opened
    torch.manual_seed(5)
    theirs, detail = session.policy.forward(batch.inputs)
    torch.manual_seed(5)
    loss, summed, counted, by_channel = objective(session, "trained", toys)(batch.inputs)
    assert torch.equal(loss, theirs)
    assert float(summed) / int(counted) == pytest.approx(float(theirs.detach()), rel=1e-6)
    assert by_channel.tolist() == pytest.approx(detail["loss_per_dim"])


def test_a_target_past_the_end_changes_nothing(opened: Any, toys: Any) -> None:
    """Even one that is not a number: the gradient stays finite and the same."""
    import torch

    session, batch = opened

    def gradient(poison: float | None) -> Any:
        losses = torch.ones(2, 3, 2, requires_grad=True)
        values = losses * torch.tensor([1.0, poison or 5.0]).reshape(2, 1, 1)
        real = torch.tensor([[True] * 3, [False] * 3])
        kept = values.masked_fill(~real.unsqueeze(-1), 0)
        kept.sum().backward()
        return losses.grad

    assert gradient(None)[0].tolist() == [[1.0, 1.0]] * 3
    module = objective(session, "masked", toys)
    inputs = {**batch.inputs, "action": batch.inputs["action"].clone()}
    torch.manual_seed(5)
    before = float(module(inputs)[1])
    # The first sample is whole; poison the loss of a padded target alone, behind the model's attention.
    original = session.policy.model.forward

    def poisoned(*given: Any, **named: Any) -> Any:
        losses = original(*given, **named).clone()
        losses[2, 5] = float("nan")
        return losses

    session.policy.model.forward = poisoned
    try:
        torch.manual_seed(5)
        assert float(module(inputs)[1]) == before
    finally:
        session.policy.model.forward = original


def test_pictures_are_resized_in_the_worker_as_the_policy_would(opened: Any, toys: Any) -> None:
    """The policy is given whole pictures, and ones brought to size before: equal bit by bit."""
    import torch

    from stack.train import lines

    session, _ = opened
    key = "observation.images.head"
    picture = torch.stack([lines.as_unit_floats(session.dataset[frame][key]) for frame in (5, 30)])
    assert picture.shape == (2, 3, 48, 64)
    small = lines.resize(picture, (56, 56))
    other = torch.zeros(2, 3, 56, 56)
    whole, _ = session.policy._preprocess_images({key: picture, "observation.images.hand": other})
    ready, _ = session.policy._preprocess_images({key: small, "observation.images.hand": other})
    assert small.shape == (2, 3, 56, 56)
    assert all(torch.equal(one, two) for one, two in zip(whole, ready, strict=True))


def test_gradient_checkpointing_keeps_the_numbers_and_not_the_activations(
    toys: Any, world: Any, tmp_path: Path
) -> None:
    import torch

    kept: dict[bool, int] = {}
    losses: dict[bool, list[float]] = {}
    for is_on in (False, True):
        stored = 0

        def count(tensor: Any) -> Any:
            nonlocal stored
            stored += tensor.nbytes
            return tensor

        train = {"steps": 2, "gradient_checkpointing": is_on}
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            _, run = toys.run_here(toys.make_job(world, tmp_path / str(is_on), train=train))
        kept[is_on], losses[is_on] = stored, run.losses
    assert losses[True] == pytest.approx(losses[False], rel=1e-6)
    assert kept[True] < kept[False]
