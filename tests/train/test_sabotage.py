"""Things that go wrong, one by one: each stops the training, with words that name it.

Nothing is simulated that can be done: files are cut, processes killed, ports taken. The list at the end is
the catalogue; a line of it that passes is a fault that a person would have been told of.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stack.errors import StackError
from stack.files import read_json, write_json
from stack.train import train
from stack.train.result import TrainResult

pytestmark = pytest.mark.lerobot


@dataclass(frozen=True)
class Stage:
    """Where a sabotage happens: the helpers, what a toy run reads, and a folder of its own."""

    toys: Any
    world: Any
    folder: Path
    patch: pytest.MonkeyPatch
    steps: list[float] = field(default_factory=list)
    """When the training has told of a step: its last sign of being well."""

    def other_world(self, *, dataset: Path | None = None, mirror: Path | None = None) -> Any:
        world = self.world
        return self.toys.World(
            dataset or world.dataset, mirror or world.mirror, world.models, world.golden_ids
        )

    def copied(self, what: Path) -> Path:
        return Path(shutil.copytree(what, self.folder / what.name))

    def here(self, world: Any = None, **changes: Any) -> str:
        """Train in this process; the guard's words where it stops it."""
        job = self.toys.make_job(world or self.world, self.folder / "out", **changes)
        _, run = self.toys.run_here(job)
        return str(run.message)

    def door(self, log: Callable[[str], None] = lambda _: None, **changes: Any) -> TrainResult:
        world = self.world

        def noted(line: str) -> None:
            if line.startswith("step "):
                self.steps.append(time.monotonic())
            log(line)

        return train(
            self.toys.run_manifest(**changes),
            dataset=world.dataset,
            mirror=world.mirror,
            models=world.models,
            out=self.folder / "out",
            log=noted,
        )

    def plant(self, code: str) -> None:
        """Let every trainer that is started from here run `code` before anything else."""
        site = self.folder / "site"
        site.mkdir()
        guard = "if any('stack.train.worker' in word for word in sys.orig_argv):\n"
        body = "".join(f"    {line}\n" for line in code.splitlines())
        (site / "sitecustomize.py").write_text(f"import os, sys\n{guard}{body}")
        self.patch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def cut_weights(stage: Stage) -> str:
    mirror = stage.copied(stage.world.mirror)
    file = mirror / "toy-pi05" / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    return stage.here(stage.other_world(mirror=mirror))


def weights_that_are_no_numbers(stage: Stage) -> str:
    """One value of one tensor, as a training leaves it that has come to grief."""
    from safetensors.torch import load_file, save_file

    mirror = stage.copied(stage.world.mirror)
    file = mirror / "toy-pi05" / "model.safetensors"
    tensors = load_file(file)
    tensors["action_in_proj.weight"][3, 4] = float("nan")
    save_file(tensors, file)
    return stage.here(stage.other_world(mirror=mirror))


def weights_of_another_policy(stage: Stage) -> str:
    from safetensors.torch import load_file, save_file

    mirror = stage.copied(stage.world.mirror)
    file = mirror / "toy-pi05" / "model.safetensors"
    tensors = load_file(file)
    del tensors["action_in_proj.weight"]
    save_file(tensors, file)
    return stage.here(stage.other_world(mirror=mirror))


def wrong_tokenizer(stage: Stage) -> str:
    mirror = stage.copied(stage.world.mirror)
    file = mirror / "toy-tokenizer" / "tokenizer.json"
    raw = read_json(file)
    vocab = raw["model"]["vocab"]
    vocab["T"], vocab["U"] = vocab["U"], vocab["T"]
    raw["model"]["merges"] = []
    write_json(file, raw)
    return stage.here(stage.other_world(mirror=mirror))


def no_model(stage: Stage) -> str:
    mirror = stage.copied(stage.world.mirror)
    (mirror / "toy-pi05" / "model.safetensors").unlink()
    return stage.here(stage.other_world(mirror=mirror))


def no_dataset(stage: Stage) -> str:
    return stage.here(stage.other_world(dataset=stage.folder / "nowhere"))


def nan_in_a_row(stage: Stage) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    dataset = stage.copied(stage.world.dataset)
    (file,) = (dataset / "data").rglob("*.parquet")
    table = pq.read_table(file)
    rows = table["action"].to_pylist()
    for frame in range(30, 36):
        rows[frame][4] = float("nan")
    column = pa.array(rows, table.schema.field("action").type)
    pq.write_table(table.set_column(table.schema.get_field_index("action"), "action", column), file)
    return stage.here(stage.other_world(dataset=dataset), train={"steps": 30})


def gradient_that_overflows(stage: Stage) -> str:
    """A backward pass whose numbers leave float32: the loss itself is an ordinary one."""
    import torch

    from stack.train import session

    original = session.make_objective

    class Overflow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 1e38 * 1e38

    def make(*given: Any) -> Any:
        objective = original(*given)
        objective.register_forward_hook(lambda _m, _i, out: (Overflow.apply(out[0]), *out[1:]))
        return objective

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "make_objective", make)
        return stage.here()


def broken_video(stage: Stage) -> str:
    dataset = stage.copied(stage.world.dataset)
    (file,) = (dataset / "videos" / "observation.images.hand").rglob("*.mp4")
    whole = bytearray(file.read_bytes())
    # The index stands at the front; pictures from the middle on are gone, but for the first frame's.
    whole[len(whole) // 2 :] = bytes(len(whole) - len(whole) // 2)
    file.write_bytes(whole)
    return stage.here(stage.other_world(dataset=dataset), train={"steps": 30})


def video_cut_short(stage: Stage) -> str:
    """A copy that broke off: half of the file is there, its index among it."""
    dataset = stage.copied(stage.world.dataset)
    (file,) = (dataset / "videos" / "observation.images.hand").rglob("*.mp4")
    os.truncate(file, file.stat().st_size // 2)
    return stage.here(stage.other_world(dataset=dataset), train={"steps": 30})


def missing_rows(stage: Stage) -> str:
    """A file of the dataset is not there: lerobot's reader would look it up on a hub."""
    dataset = stage.copied(stage.world.dataset)
    (file,) = (dataset / "data").rglob("*.parquet")
    file.unlink()
    return stage.here(stage.other_world(dataset=dataset))


def broken_rows(stage: Stage) -> str:
    dataset = stage.copied(stage.world.dataset)
    (file,) = (dataset / "data").rglob("*.parquet")
    os.truncate(file, file.stat().st_size // 2)
    return stage.here(stage.other_world(dataset=dataset))


def statistics_that_are_too_short(stage: Stage) -> str:
    dataset = stage.copied(stage.world.dataset)
    stats = read_json(dataset / "meta" / "stats.json")
    stats["action"]["q99"].pop()
    write_json(dataset / "meta" / "stats.json", stats)
    return stage.here(stage.other_world(dataset=dataset))


def statistics_without_quantiles(stage: Stage) -> str:
    """As lerobot wrote them before it had any."""
    dataset = stage.copied(stage.world.dataset)
    stats = read_json(dataset / "meta" / "stats.json")
    stats["observation.state"].pop("q01")
    write_json(dataset / "meta" / "stats.json", stats)
    return stage.here(stage.other_world(dataset=dataset))


def tasks_that_are_gone(stage: Stage) -> str:
    """The table of task texts is there, and empty."""
    import pyarrow.parquet as pq

    dataset = stage.copied(stage.world.dataset)
    file = dataset / "meta" / "tasks.parquet"
    pq.write_table(pq.read_table(file).slice(0, 0), file)
    return stage.here(stage.other_world(dataset=dataset))


def older_version(stage: Stage) -> str:
    dataset = stage.copied(stage.world.dataset)
    info = read_json(dataset / "meta" / "info.json")
    write_json(dataset / "meta" / "info.json", {**info, "codebase_version": "v2.1"})
    return stage.here(stage.other_world(dataset=dataset))


def hub_lookup(stage: Stage) -> str:
    """A library that asks a hub in the middle of the training, past the offline switches."""
    stage.plant(
        "from stack.train import session\n"
        "original = session.make_objective\n"
        "def make(*given):\n"
        "    objective, calls = original(*given), []\n"
        "    def ask(*_):\n"
        "        calls.append(1)\n"
        "        if len(calls) == 3:\n"
        "            import urllib.request\n"
        "            urllib.request.urlopen('https://hub.invalid/api/models/pi05', timeout=20)\n"
        "    objective.register_forward_pre_hook(ask)\n"
        "    return objective\n"
        "session.make_objective = make\n"
    )
    try:
        return stage.door(train={"steps": 100}).message
    finally:
        recorded = (stage.folder / "out" / "outside-connections.txt").read_text()
        assert recorded == "socket.getaddrinfo hub.invalid\n"


def missing_video(stage: Stage) -> str:
    """Gone while the training runs: a share that is unmounted, say. An open file would not notice."""
    dataset = stage.copied(stage.world.dataset)
    job = stage.toys.make_job(stage.other_world(dataset=dataset), stage.folder / "out")

    def should_stop() -> bool:
        from stack.train import lines

        shutil.rmtree(dataset / "videos", ignore_errors=True)
        from stack.train.frames import FrameReader

        lines.install_decoder(FrameReader())
        return False

    _, run = stage.toys.run_here(job, should_stop)
    return str(run.message)


def unsliced_state(stage: Stage) -> str:
    """The state as the field project's export had it: 163 wide, in rows, metadata and statistics."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    key, dataset = "observation.state", stage.copied(stage.world.dataset)
    (file,) = (dataset / "data").rglob("*.parquet")
    table = pq.read_table(file).replace_schema_metadata(None)
    rows = [(row * 11)[:163] for row in table[key].to_pylist()]
    column = pa.array(rows, pa.list_(pa.float32(), 163))
    pq.write_table(table.set_column(table.schema.get_field_index(key), key, column), file)
    info, stats = (read_json(dataset / "meta" / name) for name in ("info.json", "stats.json"))
    info["features"][key].update(shape=[163], names=[f"channel {i}" for i in range(163)])
    stats[key] = {
        name: value if name == "count" else (value * 11)[:163] for name, value in stats[key].items()
    }
    write_json(dataset / "meta" / "info.json", info)
    write_json(dataset / "meta" / "stats.json", stats)
    return stage.here(stage.other_world(dataset=dataset))


def wrong_global_batch(stage: Stage) -> str:
    try:
        stage.toys.run_manifest(train={"global_batch": 32})
    except ValueError as error:
        return str(error)
    return ""


def adapters_for_nothing(stage: Stage) -> str:
    return stage.here(train={"lora": {"targets": ["q_poj"]}})


def broken_expression(stage: Stage) -> str:
    return stage.here(train={"lora": {"targets": "(q_proj"}})


def another_launcher(stage: Stage) -> str:
    """As `torchrun --nproc-per-node 2 stack train` would start it, twice and each for both."""
    stage.patch.setenv("WORLD_SIZE", "2")
    stage.patch.setenv("RANK", "1")
    return stage.door().message


def out_that_cannot_be_made(stage: Stage) -> str:
    (stage.folder / "out").write_text("a file")
    return stage.door().message


def full_disk(stage: Stage) -> str:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        return stage.here()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def changed_checkpoint(stage: Stage) -> str:
    stage.here(train={"steps": 2})
    file = stage.folder / "out" / "checkpoints" / "000002" / "pretrained_model" / "model.safetensors"
    with file.open("r+b") as raw:
        raw.seek(-5, os.SEEK_END)
        raw.write(b"\x3f")
    return stage.here(is_resume=True, train={"steps": 2})


def changed_optimiser(stage: Stage) -> str:
    """One bit of a moment: it would load, and the losses would differ from then on."""
    stage.here(train={"steps": 2})
    file = stage.folder / "out" / "checkpoints" / "000002" / "training_state" / "optimizer_state.safetensors"
    with file.open("r+b") as raw:
        raw.seek(-8, os.SEEK_END)
        byte = raw.read(1)
        raw.seek(-8, os.SEEK_END)
        raw.write(bytes([byte[0] ^ 1]))
    return stage.here(is_resume=True, train={"steps": 2})


def little_shared_memory(stage: Stage) -> str:
    """As many workers as this host's shared memory does not hold: as a container's 64 MB for two."""
    shm = os.statvfs("/dev/shm")
    workers = shm.f_frsize * shm.f_bavail // (64 * 1024**2) + 1
    return stage.door(train={"workers": workers}).message


def a_batch_that_is_lost(stage: Stage) -> str:
    """A worker that may open no more files cannot hand over what it has made, and lives on."""
    import resource

    def no_more_files() -> None:
        time.sleep(0.5)  # what was made before is handed over: in the middle of that, it would be refused
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))

    return _with_third_batch(stage, no_more_files, data_timeout_s=3)


def a_batch_that_is_refused(stage: Stage) -> str:
    """A worker that fails in the middle of handing over: the connection is closed."""
    from multiprocessing import reduction

    def refuse(*_: Any) -> None:
        raise OSError(24, "Too many open files")

    return _with_third_batch(stage, lambda: setattr(reduction, "send_handle", refuse), data_timeout_s=60)


def a_worker_that_dies_handing_over(stage: Stage) -> str:
    """The closed connection and the death are told of by two ways; the death is the reason."""
    from multiprocessing import reduction

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return _with_third_batch(stage, lambda: setattr(reduction, "send_handle", die), data_timeout_s=60)


def _with_third_batch(stage: Stage, do: Callable[[], None], data_timeout_s: int) -> str:
    """Do something in a loader's worker that has made its third batch, which waits to be handed over."""
    from stack.train import data

    make, calls = data.Collate.__call__, []

    def made(self: Any, samples: list[Any]) -> Any:
        batch = make(self, samples)
        calls.append(1)
        if os.getpid() != here and len(calls) == 3:
            do()
        return batch

    here = os.getpid()
    stage.patch.setattr(data.Collate, "__call__", made)
    return stage.here(train={"steps": 100, "workers": 1, "data_timeout_s": data_timeout_s})


def few_open_files(stage: Stage) -> str:
    from stack.train.preflight import check_open_files

    with stage.patch.context() as patch:
        patch.setattr("resource.getrlimit", lambda _: (64, 256))
        check_open_files(workers=4)
        check_open_files(workers=8)
    return ""


def horizon_beyond_the_episodes(stage: Stage) -> str:
    return stage.here(policy={"action_horizon": 100_000})


def too_few_devices(stage: Stage) -> str:
    return stage.door(device={"count": 4096}, train={"global_batch": 4 * 4096}).message


def port_in_use(stage: Stage) -> str:
    from stack.manifests.run import Device
    from stack.train.preflight import check_ports, needed_ports

    with socket.socket() as taken, pytest.MonkeyPatch.context() as patch:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        patch.setenv("HCCL_IF_BASE_PORT", str(taken.getsockname()[1]))
        check_ports(needed_ports(Device(kind="npu", count=8)))
    return ""


def stale_trainer(stage: Stage) -> str:
    """A trainer of this folder that an earlier start left, as `ps` shows it."""
    job = stage.folder / "out" / "job.json"
    command = [sys.executable, "-c", "import time; time.sleep(600)", "-m", "stack.train.worker", str(job)]
    child = subprocess.Popen(command)
    try:
        return stage.door().message
    finally:
        child.kill()
        child.wait()


def one_process_for_two(stage: Stage) -> str:
    """What some launchers do without a word: a single process where two were asked for."""
    from stack.train.child import environment
    from stack.train.failure import first_failure

    changes = {"device": {"count": 2}, "train": {"batch_per_device": 2}}
    job = stage.toys.make_job(stage.world, stage.folder / "out", **changes)
    job.write(job.out / "job.json")
    env = environment(job.out / ".home", is_cpu=True, ranks=1)
    command = [sys.executable, "-m", "stack.train.worker", str(job.out / "job.json")]
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    failed = first_failure(job.out)
    assert done.returncode == 3 and failed is not None
    return str(failed["what"])


def processes() -> Iterator[tuple[int, int, list[str]]]:
    """(pid, parent's pid, environment) of all that can be seen."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            yield int(entry.name), int(fields[1]), environment


def killer(choose: Callable[[list[tuple[int, int, list[str]]], int], int]) -> Callable[[str], None]:
    """A log that, at the second step, kills one process among those below the launcher's child."""
    done: list[int] = []

    def log(line: str) -> None:
        if line.startswith("step 2/") and not done:
            everything = list(processes())
            child = next(pid for pid, parent, _ in everything if parent == os.getpid() and _is_trainer(pid))
            done.append(choose(everything, child))
            os.kill(done[0], signal.SIGKILL)

    return log


def _is_trainer(pid: int) -> bool:
    return "stack.train.worker" in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


def _second_rank(found: list[tuple[int, int, list[str]]], launcher: int) -> int:
    """Below this launcher: other trainings on the machine have second ranks, too."""
    return next(p for p, parent, env in found if parent == launcher and "RANK=1" in env and _is_trainer(p))


LONG_RUN = {"steps": 100_000, "log_every": 1, "save_every": 100_000}


def killed_trainer(stage: Stage) -> str:
    result = stage.door(killer(lambda _, child: child), train=LONG_RUN)
    assert result.outcome == "killed"
    return result.message


def killed_loader_worker(stage: Stage) -> str:
    log = killer(lambda found, child: next(pid for pid, parent, _ in found if parent == child))
    return stage.door(log, train={**LONG_RUN, "workers": 1}).message


def killed_rank(stage: Stage) -> str:
    log = killer(_second_rank)
    result = stage.door(log, device={"count": 2}, train={**LONG_RUN, "batch_per_device": 2})
    assert result.outcome == "killed"
    return result.message


def rank_that_fails_first(stage: Stage) -> str:
    """A frame of the second rank's that cannot be read; the first rank only sees a closed connection."""
    from stack.train.data import Order

    order = Order(stage.toys.EPISODES * stage.toys.LENGTH, 2, 1000, world=2, rank=1)
    frame = next(iter(order.batches(2, 3)))[0]
    stage.plant(
        "from stack.train import batches\n"
        "read = batches.Samples.__getitem__\n"
        "def planted(self, index):\n"
        f"    if index == {frame}:\n"
        "        return batches.Unreadable(index, 'the disk says no')\n"
        "    return read(self, index)\n"
        "batches.Samples.__getitem__ = planted\n"
    )
    settings = {"batch_per_device": 2, "steps": 100, "warmup_steps": 1}
    return stage.door(device={"count": 2}, train=settings).message


def loader_that_hangs(stage: Stage) -> str:
    """A worker that waits for its disk for ever: alive, and silent."""
    from stack.train import batches

    read, calls = batches.Samples.__getitem__, []

    def hangs(self: Any, index: int) -> Any:
        calls.append(index)
        time.sleep(600 if os.getpid() != here and len(calls) == 9 else 0)
        return read(self, index)

    here = os.getpid()
    stage.patch.setattr(batches.Samples, "__getitem__", hangs)
    return stage.here(train={"steps": 100, "workers": 1, "data_timeout_s": 3})


def two_workers_in_64_mb(stage: Stage) -> str:
    """A container's default: /dev/shm is 64 MB, in a namespace of mounts where that is really so."""
    enter = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user cannot mount in a namespace of its own")
    job = stage.toys.make_job(stage.world, stage.folder / "out", train={"workers": 2})
    job.write(job.out / "job.json")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from stack.train import preflight\n"
        "from stack.train.job import Job\n"
        "preflight.check(Job.read(Path(sys.argv[1])), print)\n"
    )
    done = subprocess.run(
        [*enter, sys.executable, "-c", code, str(job.out / "job.json")], capture_output=True, text=True
    )
    assert done.returncode == 1
    return done.stderr


CATALOGUE: list[tuple[Callable[[Stage], str], str, str]] = [
    (cut_weights, "weights-broken", "cut short or no safetensors"),
    (weights_of_another_policy, "weights-do-not-fit", "action_in_proj.weight: not in the file"),
    (weights_that_are_no_numbers, "weights-not-finite", "action_in_proj.weight (1 of "),
    (wrong_tokenizer, "golden-differs", "the tokenizer does not encode as it must"),
    (no_model, "model-missing", "the mirror has no model.safetensors of 'toy-pi05'"),
    (no_dataset, "dataset-missing", "there is no dataset here"),
    (nan_in_a_row, "", "action 'joint_4' = nan"),
    (gradient_that_overflows, "", "the gradient norm of step 1 is"),
    (broken_video, "sample-unreadable", "cannot be read"),
    (video_cut_short, "sample-unreadable", "episode "),
    (missing_rows, "dataset-incomplete", "the dataset misses data/chunk-000/file-000.parquet"),
    (broken_rows, "dataset-unreadable", "lerobot cannot read the dataset"),
    (
        statistics_that_are_too_short,
        "dataset-statistics",
        "q99 of action has 15 values, and the feature has 16",
    ),
    (statistics_without_quantiles, "dataset-statistics", "q01 of observation.state has 0 values"),
    (tasks_that_are_gone, "sample-unreadable", "episode 0 frame 0 (row 0) cannot be read: IndexError"),
    (older_version, "dataset-version", "the dataset is of version v2.1, and training reads v3.0"),
    (hub_lookup, "outside-connection", "to hub.invalid refused: training never leaves this machine"),
    (missing_video, "sample-unreadable", "cannot be opened"),
    (unsliced_state, "policy-too-narrow", "observation.state is 163 wide, and the policy takes 32"),
    (wrong_global_batch, "", "global_batch is 32, but batch_per_device 4"),
    (adapters_for_nothing, "lora-targets-unknown", "matches no layer of the policy"),
    (broken_expression, "lora-targets-broken", "is no regular expression"),
    (another_launcher, "launched-as-a-rank", "started as rank 1 of 2 by another launcher"),
    (out_that_cannot_be_made, "folder-not-writable", "nothing can be written here"),
    (full_disk, "checkpoint-not-written", "checkpoint of step 6"),
    (changed_checkpoint, "checkpoint-weights-changed", "not the ones that were written with it"),
    (changed_optimiser, "checkpoint-file-changed", "a file of the checkpoint is not the one"),
    (little_shared_memory, "doctor-shared-memory", "workers die with a bus error"),
    (two_workers_in_64_mb, "", "/dev/shm has 67 MB free; 2 loader workers want 134 MB"),
    (few_open_files, "open-files-few", "may open 256 files here; a trainer with 8 loader workers wants 384"),
    (
        horizon_beyond_the_episodes,
        "horizon-beyond-episodes",
        "is 100000, and the longest episode has 24 frames",
    ),
    (too_few_devices, "devices-missing", "device.count is 4096"),
    (port_in_use, "port-in-use", "is in use, and the ranks need it to meet"),
    (stale_trainer, "train-still-running", "of an earlier start still trains in this folder"),
    (one_process_for_two, "", "1 processes were started, and device.count asks for 2"),
    (killed_trainer, "", "was killed by signal 9 (SIGKILL) from outside"),
    (killed_loader_worker, "loader-worker-died", "a loader's worker has died"),
    (loader_that_hangs, "loader-stuck", "no batch has come from the loader's workers for 3 s"),
    (a_batch_that_is_lost, "loader-stuck", "no batch has come from the loader's workers for 3 s"),
    (
        a_batch_that_is_refused,
        "loader-handover-failed",
        "could not be taken over from a loader's worker: EOFError",
    ),
    (a_worker_that_dies_handing_over, "loader-worker-died", "a loader's worker has died"),
    (killed_rank, "", "rank 1 (process "),
    (rank_that_fails_first, "sample-unreadable", "rank 1: episode "),
]


@pytest.mark.parametrize(("sabotage", "id", "words"), CATALOGUE, ids=[c[0].__name__ for c in CATALOGUE])
def test_sabotage_stops_with_the_right_words(
    toys: Any,
    world: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sabotage: Callable[[Stage], str],
    id: str,
    words: str,
) -> None:
    started = time.monotonic()
    found = ""
    stage = Stage(toys, world, tmp_path, monkeypatch)
    try:
        said = sabotage(stage)
    except StackError as error:
        said, found = f"{error.what} {error.where}", error.id
    assert found == id, said
    assert words in said
    # Without a step, this counts the start of a process that imports lerobot.
    limit_s, since = (60, stage.steps[-1]) if stage.steps else (120, started)
    took_s = time.monotonic() - since
    assert took_s < limit_s, "it hung"
    print(f"{sabotage.__name__}: words after {took_s:.1f} s")
