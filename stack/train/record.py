"""A training's journal: parameters, dataset, curve, outcome. The parent writes it from the child's events."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stack.files import read_json, sha256_file, write_json
from stack.manifests.load import Loaded
from stack.manifests.run import RunManifest
from stack.tracking import names
from stack.tracking.journal import Journal, Status
from stack.train.identity import data_facts
from stack.train.job import Job
from stack.train.result import RESULT, TrainResult

MANIFEST = "run.json"
METRICS = {
    "loss": names.LOSS,
    "lr": "train/lr",
    "grad_norm": "train/grad_norm",
    "step_s": names.STEP_S,
    "samples_per_s": names.SAMPLES_PER_S,
    "data_wait_s": "perf/data_wait_s",
    "data_wait_frac": "perf/data_wait_frac",
    "memory_bytes": "mem/now_bytes",
    "peak_memory_bytes": names.PEAK_MEMORY_BYTES,
}
_STATUS: dict[str, Status] = {"finished": "FINISHED", "stopped": "KILLED"}


class Recorder:
    """Follows a child's events file and writes them to a journal and to a log."""

    def __init__(self, events: Path, journal: Journal, steps: int, log: Callable[[str], None]) -> None:
        self._events, self._journal, self._steps, self._log = events, journal, steps, log
        self._offset = events.stat().st_size if events.exists() else 0

    def poll(self) -> None:
        """Take what is new; a line still being written waits for the next call."""
        if not self._events.exists():
            return
        with self._events.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        kind, step = event["kind"], event.get("step", 0)
        if kind == "window":
            self._journal.metrics({METRICS[key]: event[key] for key in METRICS}, step=step)
            self._log(
                f"step {step}/{self._steps}  loss {event['loss']:.4f}  lr {event['lr']:.2e}  "
                f"{event['step_s']:.3f} s/step  {event['samples_per_s']:.1f} samples/s  "
                f"data {event['data_wait_frac']:.1%}  "
                f"{event['peak_memory_bytes'] / 1e9:.2f} GB"
            )
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
            self._log(f"step {step}/{self._steps}  held-out loss {event['loss']:.4f}")
        elif kind == "checkpoint":
            self._journal.event("checkpoint", step=step, path=event["path"], bytes=event["bytes"])
            self._journal.metrics({"perf/checkpoint_stop_s": event["stopped_s"]}, step=step)
        elif kind == "checkpoint-failed":
            self._journal.event("checkpoint-failed", step=step, message=event["message"])
            self._log(f"warning: {event['message']}; the training goes on")


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
        tags={names.DEVICE: run.device.kind, "stack.run": run.name},
        description=run.purpose,
    )
    write_json(job.out / MANIFEST, run.model_dump(mode="json", by_alias=True))
    facts = data_facts(job.dataset)
    journal.params(parameters(run, facts))
    digest = str(facts["digest"] or sha256_file(job.dataset / "meta" / "stats.json"))
    journal.tags(
        {
            "stack.manifest_sha256": loaded.fingerprint,
            names.DATASET: dataset_name(run),
            names.DATASET_DIGEST: digest,
        }
    )
    journal.dataset(
        name=dataset_name(run),
        digest=digest,
        source=run.dataset,
        context="training",
        profile={**facts, **_widths(job.dataset)},
    )
    journal.artifact(job.out / MANIFEST)
    return journal


def dataset_name(run: RunManifest) -> str:
    """What people call the dataset: its manifest's name, not the folder that it happens to lie in."""
    return Path(run.dataset).stem


def parameters(run: RunManifest, facts: dict[str, Any]) -> dict[str, Any]:
    """What people compare between runs, flat."""
    policy = run.policy.model_dump(mode="json", exclude={"toy"})
    toy = run.policy.toy.model_dump(mode="json") if run.policy.toy else {}
    params = {f"policy.{key}": value for key, value in policy.items()}
    params |= {f"toy.{key}": value for key, value in toy.items()}
    params |= {f"train.{key}": value for key, value in run.train.model_dump(mode="json").items()}
    params |= {f"device.{key}": value for key, value in run.device.model_dump(mode="json").items() if value}
    params |= {f"data.{key}": value for key, value in facts.items() if key != "digest"}
    return params


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
    journal.end(_STATUS.get(result.outcome, "FAILED"))
    journal.close()


def _widths(dataset: Path) -> dict[str, Any]:
    features = read_json(dataset / "meta" / "info.json", what="dataset's info")["features"]
    cameras = sum(entry["dtype"] in ("video", "image") for entry in features.values())
    widths = {
        f"{key}_width": features[key]["shape"][0]
        for key in ("observation.state", "action")
        if key in features
    }
    return {"cameras": cameras, **widths}
