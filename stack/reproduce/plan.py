"""What a run would do, without doing it: `stack reproduce RUN --dry-run`."""

from __future__ import annotations

from collections.abc import Iterator

from stack.manifests import DatasetManifest, Loaded, RunManifest
from stack.manifests.dataset import Slice
from stack.manifests.models import Model
from stack.manifests.run import ExpectedPoint
from stack.reproduce.stages import Context, stage_names


def describe(context: Context) -> str:
    """The plan as text: stages, inputs and whether they are there, training, sweep, expectations."""
    manifest = context.run.manifest
    lines = [
        f"run {manifest.name}: {manifest.purpose}",
        f"stages: {' -> '.join(stage_names(manifest))} -> verdict",
    ]
    lines += [
        "",
        *_dataset(context.dataset),
        "",
        *_models(context),
        "",
        *_training(manifest),
        "",
        *_expect(manifest),
    ]
    lines += ["", f"nothing was done; results would be in {context.folder}"]
    return "\n".join(lines)


def _dataset(loaded: Loaded[DatasetManifest]) -> Iterator[str]:
    manifest = loaded.manifest
    yield f"dataset {manifest.name}"
    for source in manifest.sources:
        there = "there" if loaded.path(source.path).is_dir() else "not there yet"
        without = f", without episode {_numbers(source.exclude_episodes)}" if source.exclude_episodes else ""
        yield f"  source {source.name or source.path}{without} ({there})"
    for feature, slices in (manifest.features or {}).items():
        yield f"  {feature} = {' + '.join(_slice(s) for s in slices)}"
    expect = manifest.expect
    counts = [
        f"{v:g} {k}"
        for k in ("episodes", "frames", "fps", "cameras")
        if (v := getattr(expect, k)) is not None
    ]
    counts += [f"{feature} {width} wide" for feature, width in expect.widths.items()]
    yield f"  expected: {', '.join(counts) or 'nothing'}"


def _slice(s: Slice) -> str:
    at = f"[{s.at[0]}:{s.at[1]})" if s.at is not None else ""
    if s.field is not None:
        return f"{s.field}{at}"
    if at:
        return at
    return ", ".join(s.names) if s.names is not None else "all channels"


def _models(context: Context) -> Iterator[str]:
    yield "models"
    for name in context.model_names:
        model = context.models.manifest.models[name]
        yield f"  {name}: {_origin(model)}, {len(model.files)} files" + (
            f"; not pinned yet: {', '.join(model.unpinned)}" if model.unpinned else ", every one pinned"
        )


def _origin(model: Model) -> str:
    origin = model.origin
    if origin.modelscope is not None:
        return f"{model.kind} from ModelScope {origin.modelscope} at {origin.revision}"
    return f"{model.kind} made by the demo"


def _training(manifest: RunManifest) -> Iterator[str]:
    policy, device, train = manifest.policy, manifest.device, manifest.train
    yield "training"
    yield f"  device: {device.count} x {device.kind}{f' {device.model}' if device.model else ''}"
    yield f"  container: {device.image or 'none named'}"
    yield (
        f"  policy: {policy.type}{' at toy size' if policy.toy else ''}, {policy.dtype}, "
        f"action horizon {policy.action_horizon}"
    )
    yield (
        f"  batch: {train.batch_per_device} a device x {device.count} x accumulation {train.accumulation} = "
        f"global batch {train.global_batch}"
    )
    yield f"  {train.steps:,} steps, learning rate {train.learning_rate:g}, seed {train.seed}"
    for group in manifest.sweep.groups if manifest.sweep else ():
        listed = [f"batch {' / '.join(map(str, group.batches))} a device"] if group.batches else []
        if group.search is not None:
            listed.append(
                f"search for the largest that leaves {group.search.margin_frac:.0%} of the memory free"
            )
        yield f"  sweep on {group.devices} device(s): {'; '.join(listed)}"


def _expect(manifest: RunManifest) -> Iterator[str]:
    expect = manifest.expect
    yield "expected of the run"
    yield f"  audit errors: {expect.audit_errors}"
    for point in (*expect.first_steps, *expect.curve):
        yield f"  {_point(point)}"
    if expect.result is not None:
        for name in ("last_to_first_fifth", "final_loss"):
            if (band := getattr(expect.result, name)) is not None:
                yield f"  {name}: {band}"
        yield f"  steps with a non-finite value: {expect.result.nonfinite}"
    for name, label in (
        ("step_s", "seconds a step"),
        ("samples_per_s", "samples a second"),
        ("peak_memory_gb", "peak memory, GB"),
    ):
        band = getattr(expect.speed, name, None)
        if band is not None:
            yield f"  {label}: {band}"
    for group in expect.sweep:
        yield f"  sweep on {group.devices} device(s): ok {list(group.ok)}, out of memory {list(group.oom)}"


def _point(point: ExpectedPoint) -> str:
    return f"mean loss at step {point.step:,}: {point.loss}"


def _numbers(episodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, episodes))
