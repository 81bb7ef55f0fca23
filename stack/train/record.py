"""A training's journal: parameters, dataset, curves, figures, outcome, checkpoints.

The parent writes it from the child's events. What stands in the run folder's `provenance/` is shown with the
run, and `provenance/provenance.json` gives its tags of code, line and image.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stack.drawing import Line, line_chart
from stack.files import read_json, sha256_file, write_json
from stack.manifests.load import Loaded
from stack.manifests.run import RunManifest
from stack.tracking import names
from stack.tracking.journal import Journal, Status
from stack.tracking.sampler import Sampler, driver_version
from stack.tracking.secrets import redacted
from stack.train.figures import ranges_figure, record_figure
from stack.train.identity import data_facts
from stack.train.job import Job
from stack.train.result import RESULT, TrainResult
from stack.train.settings import before_start

MANIFEST = "run.json"
PROVENANCE = "provenance"
METRICS = {
    "loss": names.LOSS,
    "lr": "train/lr",
    "grad_norm": "train/grad_norm",
    "step_s": names.STEP_S,
    "samples_per_s": names.SAMPLES_PER_S,
    "data_wait_s": "perf/data_wait_s",
    "data_wait_frac": "perf/data_wait_frac",
    "cpu_s": "perf/cpu_s",
    "memory_bytes": "mem/now_bytes",
    "peak_memory_bytes": names.PEAK_MEMORY_BYTES,
}
_STATUS: dict[str, Status] = {"finished": "FINISHED", "stopped": "KILLED"}


class Recorder:
    """Follows a child's events file, writes them to a journal and to a log, and samples the machine."""

    def __init__(self, job: Job, journal: Journal, log: Callable[[str], None]) -> None:
        self._events, self._journal, self._log = job.events, journal, log
        self._train = job.run.train
        self._frames = int(data_facts(job.dataset)["frames"])
        self._offset = self._events.stat().st_size if self._events.exists() else 0
        self._sampler = Sampler(journal, job.run.device.kind, job.out)
        self._problem: str | None = None

    def poll(self) -> None:
        """Take what is new; a line still being written waits for the next call."""
        self._sampler.poll()
        self._tell_problem()
        if not self._events.exists():
            return
        with self._events.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                self._take(json.loads(line))

    def close(self) -> None:
        """After the child's end: what was sampled last."""
        self._sampler.close()

    def _tell_problem(self) -> None:
        now = self._journal.problem
        if (now is None) != (self._problem is None):
            self._log(f"warning: {now}" if now else "the journal is written again, nothing is missing")
        self._problem = now

    def _take(self, event: dict[str, Any]) -> None:
        kind, step = event["kind"], event.get("step", 0)
        if kind == "window":
            self._journal.metrics(self._window(event), step=step)
            self._log(
                f"step {step}/{self._train.steps}  loss {event['loss']:.4f}  lr {event['lr']:.2e}  "
                f"{event['step_s']:.3f} s/step  {event['samples_per_s']:.1f} samples/s  "
                f"data {event['data_wait_frac']:.1%}  "
                f"{event['peak_memory_bytes'] / 1e9:.2f} GB"
            )
        elif kind == "start" and (step or self._journal.is_continued):
            self._journal.resumed(step)
        elif kind == "settings":
            self._journal.params(event["params"])
        elif kind == "log":
            self._log(event["text"])
        elif kind == "trip":
            self._journal.event("guard", step=step, message=event["message"])
        elif kind == "skip":
            self._journal.event("skip", step=step, message=event["message"])
            self._log(f"guard: {event['message']}")
        elif kind == "evaluation":
            errors = {f"eval/action_error/{_metric_name(n)}": e for n, e in event["action_error"].items()}
            self._journal.metrics({"eval/loss": event["loss"], **errors}, step=step)
            self._log(f"step {step}/{self._train.steps}  held-out loss {event['loss']:.4f}")
        elif kind == "checkpoint":
            details = {key: event[key] for key in ("path", "bytes", "sha256") if key in event}
            self._journal.event("checkpoint", step=step, **details)
            self._journal.metrics({"perf/checkpoint_stop_s": event["stopped_s"]}, step=step)
        elif kind == "checkpoint-failed":
            self._journal.event("checkpoint-failed", step=step, message=event["message"])
            self._log(f"warning: {event['message']}; the training goes on")

    def _window(self, event: dict[str, Any]) -> dict[str, float]:
        """The window's values under the names of the plan; one that the plan does not know is of train/."""
        values = {METRICS.get(key, f"train/{key}"): value for key, value in _numbers(event)}
        values["data/epochs"] = event["step"] * self._train.global_batch / max(1, self._frames)
        return values


def _numbers(event: dict[str, Any]) -> list[tuple[str, float]]:
    own = ((key, value) for key, value in event.items() if key not in ("t", "kind", "step"))
    return [(key, value) for key, value in own if isinstance(value, (int, float))]


def _metric_name(channel: str) -> str:
    """A channel's name in the characters that MLflow takes in a metric's."""
    return re.sub(r"[^\w\-. ]", "_", channel)


def open_journal(loaded: Loaded[RunManifest], job: Job, parent: str | None) -> Journal:
    """The journal of this training, with everything that is known before its first step."""
    run = job.run
    journal = Journal(
        job.out,
        name=f"{run.name} train",
        experiment=names.TRAIN,
        parent=parent,
        tags=filter_tags(run),
        description=run.purpose,
    )
    write_json(job.out / MANIFEST, redacted(run.model_dump(mode="json", by_alias=True)))
    facts = data_facts(job.dataset)
    journal.params({**parameters(run, {**facts, **_widths(job.dataset)}), **before_start(job, facts)})
    journal.tags({"stack.manifest_sha256": loaded.fingerprint})
    record_inputs(journal, job)
    journal.artifact(job.out / MANIFEST)
    record_figure(journal, "normalised-ranges.svg", ranges_figure(job.dataset))
    return journal


def filter_tags(run: RunManifest) -> dict[str, str]:
    """What runs are filtered by, as far as the manifest and this machine say it."""
    kind = run.device.kind
    return {
        names.DEVICE: kind,
        names.DRIVER: driver_version(kind) or "none",
        names.IMAGE: os.environ.get("STACK_IMAGE") or "none",
        names.WEIGHTS: run.policy.weights,
        names.DATASET: dataset_name(run),
        names.RUN: run.name,
    }


def record_inputs(journal: Journal, job: Job) -> None:
    """The dataset as an input with its digest, and what `provenance/` says of code and packages."""
    facts = data_facts(job.dataset)
    digest = str(facts["digest"] or sha256_file(job.dataset / "meta" / "stats.json"))
    journal.tags({names.DATASET_DIGEST: digest})
    journal.dataset(
        name=dataset_name(job.run),
        digest=digest,
        source=job.run.dataset,
        context="training",
        profile={**facts, **_widths(job.dataset)},
    )
    folder = job.out / PROVENANCE
    if (folder / "provenance.json").is_file():
        journal.tags(provenance_tags(read_json(folder / "provenance.json", what="provenance")))
    for path in sorted(folder.glob("*")):
        journal.artifact(path, to=PROVENANCE)


def provenance_tags(found: dict[str, Any]) -> dict[str, str]:
    """Tags of code, line and image."""
    dirty = " dirty" if found.get("dirty") else ""
    return {
        names.LINE: str(found.get("line")),
        names.VERSION: str(found.get("version")),
        names.GIT: f"{found.get('revision') or 'none'}{dirty}",
        names.IMAGE: str(found.get("image") or "none"),
    }


def dataset_name(run: RunManifest) -> str:
    """What people call the dataset: its manifest's name, not the folder that it happens to lie in."""
    return Path(run.dataset).stem


def parameters(run: RunManifest, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What people compare between runs, flat; of `facts` what is a number or a text."""
    policy = run.policy.model_dump(mode="json", exclude={"toy"})
    toy = run.policy.toy.model_dump(mode="json") if run.policy.toy else {}
    params = {f"policy.{key}": value for key, value in policy.items()}
    params |= {f"toy.{key}": value for key, value in toy.items()}
    params |= dict(_flat("train", run.train.model_dump(mode="json")))
    params |= {f"device.{key}": value for key, value in run.device.model_dump(mode="json").items() if value}
    params |= {
        f"data.{key}": value
        for key, value in facts.items()
        if isinstance(value, (str, int, float)) and not key.endswith("digest")
    }
    return params


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A section that is given within another, such as train.lora, has a parameter for each of its keys."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}.{key}", value)
        else:
            yield f"{prefix}.{key}", value


def close_journal(journal: Journal, result: TrainResult, out: Path) -> None:
    """The end of a training in its journal."""
    finals = {
        names.FINAL_LOSS: result.final_loss,
        f"{names.FINAL}first_fifth": result.first_fifth,
        f"{names.FINAL}last_to_first_fifth": result.last_to_first_fifth,
        names.FINAL_STEP_S: result.step_s,
        names.FINAL_SAMPLES_PER_S: result.samples_per_s,
        f"{names.FINAL}data_wait_s": result.data_wait_s,
        names.FINAL_PEAK_MEMORY_BYTES: result.peak_memory_bytes,
        f"{names.FINAL}nonfinite": float(result.nonfinite),
        f"{names.FINAL}skipped": float(len(result.skipped)),
        f"{names.FINAL}data_wait_frac": result.data_wait_frac,
    }
    journal.metrics({key: value for key, value in finals.items() if value is not None}, step=result.steps)
    weights = result.weights or {}
    journal.tags(
        {
            names.OUTCOME: "ok" if result.outcome == "finished" else result.outcome,
            names.LINE: result.line,
            "stack.device_name": result.device.get("name"),
            names.WEIGHTS_DIGEST: weights.get("file_sha256"),
            "stack.weights_filled_frac": weights.get("filled_frac"),
            "stack.golden": result.golden["ok"],
            "stack.stats_proven": result.stats_proven,
            "stack.outside_connections": len(result.outside_connections),
            "stack.parameters": result.parameters,
            "stack.parameters_trained": (result.trainable or {}).get("trained"),
            **{f"stack.version.{package}": version for package, version in result.versions.items()},
        }
    )
    if result.message:
        journal.tags({"stack.message": result.message})
    journal.artifact(out / RESULT)
    if result.windows:
        losses = [Line("train/loss", [(float(step), loss) for step, loss in result.windows])]
        record_figure(journal, "loss.svg", line_chart(losses, title="train/loss", x="step", log=True))
    run = read_json(out / MANIFEST, what="run's manifest")
    _record_models(journal, result, run["name"])
    journal.end(_STATUS.get(result.outcome, "FAILED"))
    journal.close()


def _record_models(journal: Journal, result: TrainResult, name: str) -> None:
    """The last checkpoint and that of the least loss, by reference, with what was proven of them."""
    if not result.checkpoints:
        return
    last = max(result.checkpoints, key=lambda entry: entry["step"])
    losses = {entry["step"]: _loss_at(result, entry["step"]) for entry in result.checkpoints}
    known = [entry for entry in result.checkpoints if losses[entry["step"]] is not None]
    best = min(known, key=lambda entry: losses[entry["step"]] or 0.0, default=last)
    for entry in (best, last) if best is not last else (last,):
        roles = [role for role, chosen in (("best", best), ("last", last)) if entry is chosen]
        journal.model(
            name=name,
            roles=roles,
            step=entry["step"],
            path=entry["path"],
            size_bytes=entry["bytes"],
            sha256=entry["sha256"],
            loss=losses[entry["step"]],
            weights_filled_frac=(result.weights or {}).get("filled_frac"),
            golden=result.golden["ok"],
            stats_proven=result.stats_proven,
            nonfinite=result.nonfinite,
            line=result.line,
        )


def _loss_at(result: TrainResult, step: int) -> float | None:
    """The mean loss of the last window that ends at or before a step."""
    found = [loss for end, loss in result.windows if end <= step]
    return found[-1] if found else None


def _widths(dataset: Path) -> dict[str, Any]:
    features = read_json(dataset / "meta" / "info.json", what="dataset's info")["features"]
    cameras = sum(entry["dtype"] in ("video", "image") for entry in features.values())
    widths = {
        f"{key}_width": features[key]["shape"][0]
        for key in ("observation.state", "action")
        if key in features
    }
    return {"cameras": cameras, **widths}
