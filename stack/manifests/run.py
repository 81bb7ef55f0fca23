"""The run manifest: one training, from data to verdict."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stack.manifests.base import Band, Strict
from stack.manifests.dataset import ExpectedData


class ToyDims(Strict):
    """Widths of a pi0.5 that trains on a laptop's CPU; the code path is that of the full size.

    Heads are fixed at 8 by lerobot's attention; both towers share depth, head width and key/value heads.
    """

    width: int = 64
    depth: int = 2
    mlp_dim: int = 128
    num_kv_heads: int = 1
    head_dim: int = 16
    expert_width: int = 64
    expert_mlp_dim: int = 128
    vocab_size: int = 512
    vision_hidden: int = 32
    vision_layers: int = 2
    vision_heads: int = 2
    vision_mlp_dim: int = 64
    image_size: int = 56
    patch_size: int = 14

    @model_validator(mode="after")
    def _divide(self) -> ToyDims:
        for name, value in self.model_dump().items():
            if value < 1:
                raise ValueError(f"toy.{name} is {value}; it has to be at least 1")
        for name, parts in (("vision_hidden", "vision_heads"), ("image_size", "patch_size")):
            whole, part = getattr(self, name), getattr(self, parts)
            if whole % part:
                raise ValueError(f"toy.{name} {whole} is no multiple of toy.{parts} {part}")
        return self


class Policy(Strict):
    """The policy.

    Attributes:
        weights, tokenizer: names in the models manifest.
        action_horizon: actions predicted at once (lerobot's `chunk_size`).
        image_size: square pixels that pictures are resized to, with padding.
        max_state_dim, max_action_dim: widths that the policy pads to; 32 is what the pretrained heads have.
        random_tensors: tensors that may stay at random values because the weights do not fit them; any
            other tensor that the weights do not fill is an error.
        toy: toy dimensions; not given: full size.
    """

    type: Literal["pi05"]
    weights: str
    tokenizer: str
    action_horizon: int = Field(ge=1)
    dtype: Literal["float32", "bfloat16"]
    image_size: int = 224
    tokenizer_max_length: int = 200
    max_state_dim: int = 32
    max_action_dim: int = 32
    random_tensors: tuple[str, ...] = ()
    toy: ToyDims | None = None

    @model_validator(mode="after")
    def _toy_fits(self) -> Policy:
        if self.toy is not None and self.toy.image_size != self.image_size:
            raise ValueError(
                f"toy.image_size {self.toy.image_size} differs from image_size {self.image_size}"
            )
        return self


class Device(Strict):
    """What the run needs.

    Attributes:
        kind: `npu`, `cuda` or `cpu`.
        count: devices over all hosts.
        model: such as `910B3`; informative, compared by the machine gate.
        image: the container image that the run is meant for.
    """

    kind: Literal["npu", "cuda", "cpu"]
    count: int = Field(default=1, ge=1)
    model: str | None = None
    image: str | None = None


class Lora(Strict):
    """Low-rank adapters by peft on frozen weights (arXiv 2106.09685).

    Attributes:
        rank, alpha: an adapter adds `alpha / rank * B A` to its layer's weight; `A` has `rank` rows.
        targets: a regular expression over whole module names, or names that they end in. The default is the
            action expert's queries and values, and the projections of actions and time.
    """

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=16.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: str | tuple[str, ...] = (
        r"(.*\.gemma_expert\..*\.self_attn\.(q|v)_proj"
        r"|model\.(action_in_proj|action_out_proj|time_mlp_in|time_mlp_out))"
    )


class Holdout(Strict):
    """Episodes that are not trained on, to evaluate on.

    Attributes:
        episodes: their numbers in the prepared dataset; or `fraction`: a share of all, drawn by the seed.
        every: steps between evaluations; each checkpoint is evaluated too.
        frames: at most so many held-out frames an evaluation, evenly spread.
    """

    episodes: tuple[int, ...] | None = None
    fraction: float | None = Field(default=None, gt=0, lt=1)
    every: int = Field(ge=1)
    frames: int = Field(default=64, ge=1)

    @model_validator(mode="after")
    def _one_way(self) -> Holdout:
        if (self.episodes is None) == (self.fraction is None):
            raise ValueError("a holdout names either episodes or a fraction")
        if self.episodes is not None and len({*self.episodes}) != len(self.episodes):
            raise ValueError("holdout.episodes names an episode twice")
        return self


class Train(Strict):
    """The training.

    Attributes:
        batch_per_device, global_batch: must agree with the device count and `accumulation`.
        data_timeout_s: with workers, the training stops when a batch has not come for so long.
        log_every: steps between points of the curve; each is the mean over its window.
        padded_actions: actions past an episode's end repeat its last one. `masked`: they do not count;
            `trained`: they do, as in lerobot.
        trains: `all`, or `expert`: the action expert and the projections of actions and time, nothing else.
        freeze_vision: the vision tower stays as it is.
        lora: train adapters, and nothing else.
        master_weights: with bfloat16, which must say it: `true` keeps float32 weights and computes in
            bfloat16; `false` has bfloat16 weights alone, where small updates are rounded away.
        gradient_checkpointing: recompute activations in the backward pass instead of keeping them.
        ema_decay: also keep a moving average of the weights; it is what is evaluated and saved as the policy.
        keep_checkpoints: the newest so many are kept; besides them `keep_every` steps one for good, and with
            `keep_best` the one of the lowest hold-out loss.
        explosion_factor: the guard stops when a loss exceeds this many times the median of those before.
        on_bad_step: what the guard does with a loss or gradient that explodes or is not finite: `stop`, or
            `skip` the step and count it, up to `max_skipped` of them.
        input_limit: it does the same with a batch that has a state or action beyond this many times its
            channel's usual range (larger than that once normalised); not given: such values are trained on.
        stall_steps: the guard stops when the loss has not fallen over the first so many steps.
        lag_factor, lag_steps: it stops when one rank takes this many times the median of all ranks, over so
            many steps on end.
    """

    steps: int = Field(ge=1)
    batch_per_device: int = Field(ge=1)
    global_batch: int = Field(ge=1)
    accumulation: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=2.5e-5, gt=0)
    warmup_steps: int = Field(default=1000, ge=0)
    seed: int = Field(default=1000, ge=0, lt=2**62)
    workers: int = Field(default=4, ge=0)
    data_timeout_s: float = Field(default=600.0, ge=1)
    log_every: int = Field(default=10, ge=1)
    padded_actions: Literal["masked", "trained"] = "masked"
    trains: Literal["all", "expert"] = "all"
    freeze_vision: bool = False
    lora: Lora | None = None
    master_weights: bool | None = None
    gradient_checkpointing: bool = False
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    holdout: Holdout | None = None
    save_every: int = Field(ge=1)
    keep_checkpoints: int = Field(default=3, ge=1)
    keep_every: int | None = Field(default=None, ge=1)
    keep_best: bool = False
    explosion_factor: float = Field(default=50.0, gt=1)
    on_bad_step: Literal["stop", "skip"] = "stop"
    max_skipped: int = Field(default=10, ge=1)
    input_limit: float | None = Field(default=None, ge=1)
    stall_steps: int | None = Field(default=None, ge=20)
    lag_factor: float = Field(default=3.0, gt=1)
    lag_steps: int = Field(default=50, ge=2)

    @model_validator(mode="after")
    def _fits_together(self) -> Train:
        if self.lora is not None and (self.trains != "all" or self.freeze_vision):
            raise ValueError("train.lora freezes all weights; leave trains and freeze_vision out")
        if self.keep_best and self.holdout is None:
            raise ValueError("train.keep_best chooses by the loss on train.holdout, which is not given")
        if self.keep_every is not None and self.keep_every % self.save_every:
            raise ValueError(
                f"train.keep_every {self.keep_every} is no multiple of save_every {self.save_every}"
            )
        return self


class SweepSearch(Strict):
    """The largest batch that leaves a margin, and the fastest one, found in few points.

    Attributes:
        margin_frac: share of the memory that nobody held before the point; it must stay free.
        start: the batch measured first.
        most: no batch above it is tried.
        points: at most so many are measured for the search; what is then not proven is said.
    """

    margin_frac: float = Field(default=0.08, ge=0, lt=1)
    start: int = Field(default=1, ge=1)
    most: int = Field(default=1024, ge=1)
    points: int = Field(default=12, ge=3)

    @model_validator(mode="after")
    def _starts_below_its_end(self) -> SweepSearch:
        if self.start > self.most:
            raise ValueError(f"search.start {self.start} is above search.most {self.most}")
        return self


class SweepGroup(Strict):
    """Points on the same number of devices.

    Attributes:
        batches: batch sizes per device.
        search: also, or instead, search for the largest and the fastest.
        memory_limit_mb: extra host memory that a point may take on top of the loaded policy (cpu only); a
            point above it must end as out of memory.
        host_limit_mb: host memory that all processes of a point may take together, by a control group of
            Linux; the kernel ends a point above it.
    """

    devices: int = Field(ge=1)
    batches: tuple[Annotated[int, Field(ge=1)], ...] = ()
    search: SweepSearch | None = None
    memory_limit_mb: int | None = Field(default=None, ge=1)
    host_limit_mb: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _has_points(self) -> SweepGroup:
        if not self.batches and self.search is None:
            raise ValueError("a group of the sweep names batches, or a search, or both")
        return self


class Sweep(Strict):
    """Attributes:
    timeout_s: a point that is not done by then is too slow.
    pictures: also measure which part of a sample's cost is its pictures' size.
    """

    groups: tuple[SweepGroup, ...] = Field(min_length=1)
    warmup_steps: int = Field(default=2, ge=1)
    timed_steps: int = Field(default=5, ge=3)
    timeout_s: float = Field(default=900.0, gt=0)
    pictures: bool = True


class Audit(Strict):
    deep: bool = False
    allow: tuple[str, ...] = ()  # fault codes of severity error that this run accepts, stated openly


class ExpectedMachine(Strict):
    device: Literal["npu", "cuda", "cpu"]
    count: int | None = None
    model: str | None = None
    line: Literal["production", "current"] | None = None


class ExpectedLoad(Strict):
    """`filled_frac`: parameters of the policy that the weights file filled, as a share of all."""

    filled_frac: float = 1.0
    golden: bool = True


class ExpectedPoint(Strict):
    """The mean loss of the window that ends at `step`."""

    step: int
    loss: Band


class ExpectedResult(Strict):
    """Attributes:
    last_to_first_fifth: mean loss of the last fifth of the steps over that of the first fifth.
    final_loss: mean loss of the last fifth.
    nonfinite: number of steps whose loss or gradient norm was not finite.
    """

    last_to_first_fifth: Band | None = None
    final_loss: Band | None = None
    nonfinite: int = 0


class ExpectedSpeed(Strict):
    step_s: Band | None = None
    samples_per_s: Band | None = None
    peak_memory_gb: Band | None = None


class ExpectedSweep(Strict):
    """Per group of the sweep, which batch sizes fit and which end out of memory."""

    devices: int
    ok: tuple[int, ...] = ()
    oom: tuple[int, ...] = ()


class ExpectedReference(Strict):
    """Exact values of an earlier run on an equal machine. All equal: the verdict is "identical".

    Attributes:
        content_digest: the prepared dataset's.
        first_losses: losses of the first steps, as printed in result.json.
        weights_sha256: sha256 of the last checkpoint's model.safetensors.
    """

    content_digest: str
    first_losses: tuple[float, ...] = Field(min_length=1)
    weights_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Expect(Strict):
    """Gates of the verdict; one that is not given cannot be judged, and is never a pass."""

    audit_errors: int = 0
    data: ExpectedData | None = None
    machine: ExpectedMachine | None = None
    load: ExpectedLoad | None = None
    first_steps: tuple[ExpectedPoint, ...] = ()
    curve: tuple[ExpectedPoint, ...] = ()
    result: ExpectedResult | None = None
    speed: ExpectedSpeed | None = None
    sweep: tuple[ExpectedSweep, ...] = ()
    reference: ExpectedReference | None = None


class RunManifest(Strict):
    """See docs/manifests.md.

    Attributes:
        demo: where `stack demo` writes the deliveries and models that the run needs; only for runs on them.
        dataset, models: manifests, relative to this one.
        mirror: folder of mirrored models, relative to this manifest.
    """

    schema_: Literal["stack/run/1"] = Field(alias="schema")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    purpose: str
    demo: str | None = None
    dataset: str
    models: str
    mirror: str
    policy: Policy
    device: Device
    train: Train
    audit: Audit = Audit()
    sweep: Sweep | None = None
    expect: Expect

    @model_validator(mode="after")
    def _master_weights_are_stated(self) -> RunManifest:
        stated = self.train.master_weights
        if self.policy.dtype == "bfloat16" and stated is None:
            raise ValueError(
                "policy.dtype is bfloat16: say whether float32 master weights are kept, with "
                "train.master_weights true or false"
            )
        if self.policy.dtype == "float32" and stated is not None:
            raise ValueError("train.master_weights is for bfloat16; policy.dtype is float32")
        return self

    @model_validator(mode="after")
    def _global_batch_adds_up(self) -> RunManifest:
        train = self.train
        product = train.batch_per_device * self.device.count * train.accumulation
        if product != train.global_batch:
            raise ValueError(
                f"train.global_batch is {train.global_batch}, but batch_per_device {train.batch_per_device} "
                f"x device.count {self.device.count} x accumulation {train.accumulation} = {product}"
            )
        return self
