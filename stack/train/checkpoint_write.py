"""Writing checkpoints beside the training: a copy is taken in the step's pause, a thread brings it to disk.

What is written is lerobot's own layout by lerobot's own functions, which are handed stand-ins that answer
with the copy.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stack.errors import NotAble
from stack.files import disk_error, sha256_file, tree_files, whole_folder, write_json
from stack.train import checkpoint_keep, lines
from stack.train.checkpoint import AVERAGE, LOSSES, MODEL, STATE, TRAINED
from stack.train.checkpoint_snapshot import Buffers, Snapshot
from stack.train.identity import IDENTITY, TOKENIZER
from stack.train.job import WEIGHTS_FILE, Job

ADAPTER = "adapter"


class Writer:
    """Writes one snapshot at a time in a thread; on ranks other than the first it has nothing to do.

    A checkpoint that cannot be written is told and the training goes on; the one before stays.
    """

    def __init__(self, job: Job, emit: Callable[..., None]) -> None:
        self.buffers = Buffers(is_pinned=job.run.device.kind != "cpu")
        self._job, self._emit = job, emit
        self._thread: threading.Thread | None = None
        self._lost: tuple[int, NotAble] | None = None

    def start(self, snapshot: Snapshot, stopped_s: float) -> None:
        """Begin to write; `stopped_s` is what the step waited for the copy."""
        self.wait()
        self._thread = threading.Thread(
            target=self._write, args=(snapshot, stopped_s), name=f"checkpoint-{snapshot.step}"
        )
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def refuse_lost_end(self) -> None:
        """Raises NotAble where the newest checkpoint was lost: the training's end is not on disk."""
        if self._lost is not None:
            raise self._lost[1]

    def _write(self, snapshot: Snapshot, stopped_s: float) -> None:
        started = time.perf_counter()
        try:
            entry = write(self._job, snapshot)
        except Exception as error:
            lost = _lost(error, snapshot, self._job)
            self._lost = snapshot.step, lost
            self._emit("checkpoint-failed", step=snapshot.step, message=f"{lost.what} ({lost.where})")
            return
        self._lost = None
        write_s = time.perf_counter() - started
        self._emit("checkpoint", **entry, write_s=write_s, stopped_s=stopped_s)


def write(job: Job, snapshot: Snapshot) -> dict[str, Any]:
    """Write one checkpoint beside its place and rename it; returns its step, path, bytes and sha256.

    Raises:
        NotAble: the disk has no room for it; nothing was begun.
    """
    digits = max(6, len(str(job.run.train.steps)))
    target = job.checkpoints / f"{snapshot.step:0{digits}d}"
    _check_room(job.out, snapshot)
    with whole_folder(target, replace=True) as folder:
        _write_folder(folder, job, snapshot)
    checkpoint_keep.point_last_at(target)
    checkpoint_keep.prune(job.checkpoints, job.run.train)
    return {
        "step": snapshot.step,
        "path": target.relative_to(job.out).as_posix(),
        "bytes": sum(file.stat().st_size for file in tree_files(target)),
        "sha256": sha256_file(target / MODEL / WEIGHTS_FILE),
    }


def _write_folder(folder: Path, job: Job, snapshot: Snapshot) -> None:
    import torch
    from safetensors.torch import save_file

    _save_with_lerobot(folder, job, snapshot)
    shutil.copytree(job.tokenizer, folder / MODEL / TOKENIZER)
    lines.write_rng_state(snapshot.lerobot_rng, folder / STATE)
    for rank, state in enumerate(snapshot.rng_states):
        torch.save(dict(state), folder / STATE / f"rng-{rank}.pt")
    for name, tensors in ((TRAINED, snapshot.trained), (AVERAGE, snapshot.average)):
        if tensors is not None:
            save_file(tensors, folder / STATE / name)
    if snapshot.adapters is not None:
        _write_adapters(folder / ADAPTER, snapshot)
    _write_losses(folder / STATE / LOSSES, snapshot.losses)
    weights = {"weights_sha256": sha256_file(folder / MODEL / WEIGHTS_FILE)}
    write_json(folder / MODEL / IDENTITY, {**snapshot.stamp, **weights})


def _write_losses(file: Path, losses: Sequence[float | None]) -> None:
    """JSON, piece by piece: the text of all losses at once would raise the memory with every checkpoint."""
    with file.open("w", encoding="utf-8") as out:
        out.write('{"losses": [')
        for number, loss in enumerate(losses):
            out.write(("" if number == 0 else ",\n") + json.dumps(loss))
        out.write("]}\n")


def _write_adapters(folder: Path, snapshot: Snapshot) -> None:
    """peft's own files: `PeftModel.from_pretrained(policy, folder)` takes them."""
    values = snapshot.average or snapshot.trained
    assert values is not None
    # peft looks adapters up by the names that they have in its model around the policy.
    state = {f"base_model.model.{name}": tensor for name, tensor in values.items()}
    # Without the switch peft would look for the base model's embedding on a hub.
    snapshot.adapters.save_pretrained(folder, state_dict=state, save_embedding_layers=False)


def _save_with_lerobot(folder: Path, job: Job, snapshot: Snapshot) -> None:
    from lerobot.configs.default import DatasetConfig
    from lerobot.configs.train import TrainPipelineConfig

    train, config = job.run.train, snapshot.config
    # Neither an accelerator that lerobot does not know nor a folder of this machine belongs into the files.
    config.device = "cpu"
    settings = TrainPipelineConfig(
        dataset=DatasetConfig(
            repo_id=f"local/{job.dataset.name}", root=str(job.dataset), video_backend="pyav"
        ),
        policy=config,
        output_dir=job.out,
        seed=train.seed,
        num_workers=train.workers,
        batch_size=train.batch_per_device,
        steps=train.steps,
        log_freq=train.log_every,
        save_freq=train.save_every,
        optimizer=config.get_optimizer_preset(),
        scheduler=config.get_scheduler_preset(),
    )
    tokenizer_step = snapshot.processors.tokenizer_step
    name = tokenizer_step.tokenizer_name
    # Only read when a pipeline is made or saved: a training that goes on meanwhile does not see it.
    tokenizer_step.tokenizer_name = TOKENIZER
    try:
        lines.save_checkpoint(
            folder,
            world_size=job.run.device.count,
            batch_per_device=train.batch_per_device,
            step=snapshot.step,
            cfg=settings,
            policy=_FrozenPolicy(config, snapshot.model),
            optimizer=_Frozen(snapshot.optimizer),
            scheduler=_Frozen(snapshot.scheduler),
            preprocessor=snapshot.processors.before,
            postprocessor=snapshot.processors.after,
        )
    finally:
        tokenizer_step.tokenizer_name = name


class _Frozen:
    """Answers with a state taken earlier."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return dict(self._state)


class _FrozenPolicy(_Frozen):
    """Saves itself as lerobot's policies do."""

    def __init__(self, config: Any, state: Mapping[str, Any]) -> None:
        super().__init__(state)
        self.config = config

    def save_pretrained(self, folder: Path, state_dict: object = None) -> None:
        from safetensors.torch import save_model

        folder.mkdir(parents=True, exist_ok=True)
        self.config._save_pretrained(folder)
        save_model(self, str(folder / WEIGHTS_FILE))


def _check_room(folder: Path, snapshot: Snapshot) -> None:
    free = shutil.disk_usage(folder).free
    if free < snapshot.bytes:
        raise NotAble(
            "checkpoint-no-room",
            f"the checkpoint of step {snapshot.step} needs {snapshot.bytes / 1e9:.3f} GB, and "
            f"{free / 1e9:.3f} GB are free; the one before stays",
            where=str(folder),
            do="make room: the next checkpoint is tried again",
        )


def _lost(error: Exception, snapshot: Snapshot, job: Job) -> NotAble:
    if isinstance(error, NotAble):
        return error
    on_disk = disk_error(error, job.checkpoints)
    why = on_disk.what if on_disk is not None else f"{type(error).__name__}: {error}"
    free = shutil.disk_usage(job.out).free
    return NotAble(
        "checkpoint-not-written",
        f"the checkpoint of step {snapshot.step} ({snapshot.bytes / 1e9:.3f} GB) could not be written: {why} "
        f"({free / 1e9:.3f} GB are free now); the one before stays",
        where=str(job.checkpoints),
        do="make room, or see to the disk: the next checkpoint is tried again",
    )
