"""lerobot's own pi0.5 policy and processors, built from a run manifest and a dataset's features."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.devices import Device
from stack.errors import BadRequest, WorkFailed
from stack.files import read_json
from stack.manifests.models import Golden
from stack.manifests.run import Policy as PolicyManifest
from stack.manifests.run import RunManifest, Train
from stack.mirror.golden import check
from stack.train import lines, shim, toy

STATE, ACTION = "observation.state", "action"
TOKENIZER_STEP = "tokenizer_processor"
# pi0.5's preset decays from 2.5e-5 to 2.5e-6; the ratio is kept at other learning rates.
FINAL_LR_FRAC = 0.1


@dataclass(frozen=True)
class Processors:
    """lerobot's pipelines: `before` makes a batch into inputs, `after` makes actions raw again."""

    before: Any
    after: Any

    @property
    def tokenizer_step(self) -> Any:
        return next(step for step in self.before.steps if getattr(step, "input_tokenizer", None) is not None)


def build_policy(run: RunManifest, meta: Any, device: Device) -> Any:
    """Build a `PI05Policy` of random weights on `device`.

    Args:
        meta: the dataset's `LeRobotDatasetMetadata`.

    Raises:
        BadRequest: the dataset's features do not fit the policy's widths.
    """
    modeling = lines.modeling()
    shim.install(modeling)
    toy.install(modeling, run.policy.toy)
    from lerobot.policies.factory import make_policy

    _check_widths(run.policy, meta)
    config = make_config(run.policy, run.train)
    if device.kind != "cpu":
        # lerobot's configuration refuses names it does not know, npu among them; setting it afterwards works.
        config.device = str(device.torch)
    try:
        return make_policy(config, ds_meta=meta)
    except (ValueError, TypeError, AssertionError, KeyError) as error:
        words = str(error).strip().splitlines() or [""]
        raise BadRequest(
            "policy-not-built",
            f"lerobot cannot build a pi0.5 as 'policy:' asks for it: {type(error).__name__}: {words[0]}",
            do="look at the sizes in policy, and policy.toy where it is given",
        ) from error


def make_config(policy: PolicyManifest, train: Train) -> Any:
    """lerobot's `PI05Config` for a manifest; optimiser and schedule are its presets.

    The schedule is warm-up and cosine decay over exactly the manifest's steps. (lerobot's preset shortens
    the warm-up where a run has fewer than 30,000 steps; at 30,000 both are the same.)

    Raises:
        BadRequest: the warm-up is not shorter than the training.
    """
    from lerobot.policies.pi05.configuration_pi05 import PI05Config

    if train.warmup_steps >= train.steps:
        raise BadRequest(
            "train-warmup-too-long",
            f"train.warmup_steps is {train.warmup_steps}, but the training has {train.steps} steps",
            do="make it a few per cent of train.steps",
        )
    return PI05Config(
        device="cpu",
        push_to_hub=False,
        # Master weights are the policy's own float32 parameters; the step computes in bfloat16 over them.
        dtype="float32" if train.master_weights else policy.dtype,
        gradient_checkpointing=train.gradient_checkpointing,
        chunk_size=policy.action_horizon,
        n_action_steps=policy.action_horizon,
        max_state_dim=policy.max_state_dim,
        max_action_dim=policy.max_action_dim,
        image_resolution=(policy.image_size, policy.image_size),
        tokenizer_max_length=policy.tokenizer_max_length,
        optimizer_lr=train.learning_rate,
        scheduler_warmup_steps=train.warmup_steps,
        scheduler_decay_steps=train.steps,
        scheduler_decay_lr=train.learning_rate * FINAL_LR_FRAC,
    )


def build_processors(config: Any, stats: Mapping[str, Any], tokenizer: Path) -> Processors:
    """lerobot's processors with the dataset's statistics and the tokenizer of a local folder.

    The pipelines stay on the cpu: they run in the loader's workers.
    """
    processor = lines.processor()
    was = config.device
    config.device = "cpu"
    try:
        with _local_tokenizer(processor, tokenizer):
            before, after = processor.make_pi05_pre_post_processors(config, dataset_stats=dict(stats))
    finally:
        config.device = was
    return Processors(before, after)


@contextmanager
def _local_tokenizer(processor: Any, folder: Path) -> Iterator[None]:
    """While this lasts, lerobot's hard-wired tokenizer name stands for a local folder."""
    original = processor.TokenizerProcessorStep

    def from_folder(**arguments: Any) -> Any:
        return original(**{**arguments, "tokenizer_name": str(folder)})

    processor.TokenizerProcessorStep = from_folder
    try:
        yield
    finally:
        processor.TokenizerProcessorStep = original


def prove_tokenizer(processors: Processors, folder: Path, golden: Sequence[Golden]) -> int:
    """Prove that the processor's tokenizer is the folder's and gives the golden ids; returns their count.

    Raises:
        BadRequest: there is no golden text, or the tokenizer gives other ids; the first is named.
    """
    found = check(folder, golden)
    if not golden:
        raise BadRequest(
            "golden-missing",
            "the models manifest has no golden encoding for the tokenizer, so it cannot be proven",
            do="add 'golden:' with a text and its ids",
        )
    if found.difference is not None:
        raise BadRequest(
            "golden-differs",
            f"the tokenizer does not encode as it must: {found.difference}",
            where=str(folder),
            do="mirror the right tokenizer",
        )
    in_use = processors.tokenizer_step.input_tokenizer
    if any(list(in_use(item.text)["input_ids"]) != list(item.ids) for item in golden):
        raise WorkFailed("tokenizer-differs", "the processor uses another tokenizer than the folder's")
    return found.checked


def prompt_tokens(processors: Processors, sample: Mapping[str, Any]) -> int:
    """Tokens of a raw sample's prompt before anything is cut off; the processor cuts without a word."""
    step = processors.tokenizer_step
    was = step.max_length, step.padding, step.truncation
    step.max_length, step.padding, step.truncation = None, "longest", False
    try:
        return int(processors.before(batch_of_one(sample))["observation.language.tokens"].shape[-1])
    finally:
        step.max_length, step.padding, step.truncation = was


def batch_of_one(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A raw sample as a batch, pictures as the policy takes them."""
    import torch

    batch: dict[str, Any] = {}
    for key, value in sample.items():
        if not torch.is_tensor(value):
            batch[key] = [value]
        else:
            batch[key] = (lines.as_unit_floats(value) if "images" in key else value).unsqueeze(0)
    return batch


def prove_statistics(processors: Processors, root: Path, sample: Mapping[str, Any]) -> None:
    """Prove on one sample that the pipelines normalise with the statistics of `root/meta/stats.json`.

    Reference: y = 2 (x - q01) / (q99 - q01) - 1 in float64, from the file itself.

    Args:
        sample: a raw sample of the dataset, with `action` (horizon, D) and `observation.state` (D,).

    Raises:
        WorkFailed: forward or backward, the pipelines compute something else.
    """
    import numpy
    import torch

    stats = read_json(root / "meta" / "stats.json", what="dataset's statistics")
    batch = batch_of_one(sample)
    inputs = processors.before(dict(batch))
    for key in (STATE, ACTION):
        low, high = (numpy.asarray(stats[key][q], dtype=numpy.float64) for q in ("q01", "q99"))
        span = numpy.where(high == low, 1e-8, high - low)
        raw = batch[key].numpy().astype(numpy.float64)
        want = 2 * (raw - low) / span - 1
        got = inputs[key].numpy().astype(numpy.float64)
        # float32 keeps 24 bits of the statistics and of the values; a narrow span magnifies what is lost.
        slack = 1e-5 + 2**-21 * 2 * (numpy.abs(raw) + numpy.abs(low) + numpy.abs(high)) / numpy.abs(span)
        slack = slack + 1e-5 * numpy.abs(want)
        if got.shape != want.shape or not bool(numpy.all(numpy.abs(got - want) <= slack)):
            worst = float(numpy.nanmax(numpy.abs(got - want))) if got.shape == want.shape else math.nan
            raise WorkFailed(
                "statistics-differ",
                f"{key} is not normalised with the dataset's own statistics: off by {worst:.3g}",
                where=str(root / "meta" / "stats.json"),
            )
    back = processors.after(inputs[ACTION].clone())
    span = torch.as_tensor(stats[ACTION]["q99"]) - torch.as_tensor(stats[ACTION]["q01"])
    close = (back - batch[ACTION]).abs() <= 1e-4 * (1 + batch[ACTION].abs() + span.abs())
    if not bool(close.all()):
        raise WorkFailed("statistics-differ", "actions do not come back from the postprocessor as they were")


def _check_widths(policy: PolicyManifest, meta: Any) -> None:
    limits = ((STATE, policy.max_state_dim), (ACTION, policy.max_action_dim))
    for key, limit in limits:
        if key not in meta.features:
            raise BadRequest("feature-missing", f"the dataset has no {key}", where=str(meta.root))
        width = int(meta.features[key]["shape"][0])
        if width > limit:
            raise BadRequest(
                "policy-too-narrow",
                f"{key} is {width} wide, and the policy takes {limit}",
                where=str(meta.root),
                do="slice it in the dataset manifest; a wider policy would leave its heads at random values",
            )
    if not meta.camera_keys:
        raise BadRequest(
            "feature-missing", "the dataset has no camera, and pi0.5 needs one", where=str(meta.root)
        )
