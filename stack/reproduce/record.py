"""The run's own journal, and its way to the tracking server: beside the run, never in its way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from stack.errors import StackError
from stack.files import write_json
from stack.reproduce.provenance import write_provenance
from stack.reproduce.stages import Context
from stack.reproduce.verdict import Verdict
from stack.tracking import names
from stack.tracking.journal import JOURNAL, Journal, Status
from stack.tracking.sampler import driver_version
from stack.tracking.secrets import redacted
from stack.train.record import parameters

SHIP_EVERY_S = 20.0


class Recorder:
    """Opens the journal and the server when the first stage has work, closes both with the run.

    A server that does not start, or a record that cannot be shipped, costs the run nothing: the journal
    stays in the run's folder, and the user is told how to ship it.
    """

    def __init__(self, context: Context, *, is_tracked: bool) -> None:
        self._context = context
        self._is_tracked = is_tracked
        self._journal: Journal | None = None
        self._stop = threading.Event()
        self._shipper: threading.Thread | None = None
        self._failure: StackError | None = None
        self._store = context.work / "tracking"

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        self._stop.set()
        if self._journal is not None:
            self._journal.event("stopped", error=str(error) or type(error).__name__)
            self._end("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")

    def open(self) -> None:
        """Begin the record, once."""
        if self._journal is not None:
            return
        manifest = self._context.run.manifest
        write_json(self._context.folder / "manifest.json", redacted(_resolved(self._context)))
        self._journal = Journal(
            self._context.folder,
            name=manifest.name,
            experiment=names.REPRODUCE,
            tags=_tags(self._context),
            description=f"{manifest.purpose}\n\nAgain: `stack reproduce {self._context.run.file.name}`",
        )
        self._context.parent = self._journal.run_id
        if self._is_tracked:
            self._shipper = threading.Thread(target=self._ship_beside, name="shipper", daemon=True)
            self._shipper.start()

    def finish(self, verdict: Verdict) -> None:
        """Write what compares, and the verdict."""
        self.open()
        assert self._journal is not None
        context, folder = self._context, self._context.folder
        self._journal.params(_params(context))
        self._journal.tags({names.DRIVER: driver_version(context.run.manifest.device.kind) or "none"})
        self._journal.tags({names.VERDICT: verdict.tag, names.OUTCOME: "ok" if verdict.good else "not-good"})
        if "prepare" in context.done:
            facts = context.facts("prepare")
            self._journal.tags({names.DATASET_DIGEST: facts["content_digest"]})
            self._journal.dataset(
                name=context.dataset.manifest.name,
                digest=facts["content_digest"],
                source=str(context.done["prepare"].folder),
                context="training",
                profile={key: facts[key] for key in ("episodes", "frames", "fps", "cameras")},
            )
        self._journal.metrics(_finals(context, verdict), step=0)
        for path in (folder / "verdict.html", folder / "verdict.json", folder / "audit" / "audit.html"):
            if path.exists():
                self._journal.artifact(path)
        write_provenance(folder, context.provenance)
        provenance = sorted((folder / "provenance").glob("*"))
        for path in (folder / "manifest.json", *provenance):
            self._journal.artifact(path, to="provenance")
        if (of_data := folder / "prepare" / "meta" / "provenance.json").exists():
            self._journal.artifact(of_data, to="provenance/dataset")
        for path in sorted([*folder.glob("train/figures/*.svg"), *folder.glob("sweep/figures/*.svg")]):
            self._journal.artifact(path, to="figures")
        self._tell_data()
        self._end("FINISHED" if verdict.good else "FAILED")

    def _tell_data(self) -> None:
        """What the audit found belongs to the record of the data too."""
        folder = self._context.folder
        if "audit" in self._context.done and (data := Journal.extend(folder / "prepare.record")) is not None:
            facts = self._context.facts("audit")
            data.artifact(folder / "audit" / "audit.html")
            data.tags({"stack.audit": f"{facts['errors']} errors, {facts['warnings']} warnings"})
            data.metrics({f"{names.FINAL}audit_errors": float(facts["errors"])}, step=0)
            data.close()

    def ship(self) -> Path | None:
        """Bring what is not there yet to the server; the store's folder if the run stands in it."""
        was_shipped = (self._context.folder / ".shipped.json").exists()
        if not self._is_tracked or not (self._context.folder / JOURNAL).exists():
            return self._store if was_shipped else None
        if self._shipper is None and was_shipped:
            return self._store
        self._stop.set()
        if self._shipper is None:
            self._ship_beside()
        else:
            self._shipper.join()
        if self._failure is None:
            return self._store
        self._context.log(f"tracking: the record was not shipped, the run is not affected: {self._failure}")
        self._context.log(f"  later: stack track ship {self._context.folder}")
        return None

    def _end(self, status: Status) -> None:
        if self._journal is not None:
            self._journal.end(status)
            self._journal.close()

    def _ship_beside(self) -> None:
        """Keep one server up and the record current while the stages run; ship the rest at the end."""
        from stack.tracking.priority import THREAD_NICE, step_back
        from stack.tracking.server import Server
        from stack.tracking.shipping import FOLLOW_SHARE, Passes, ship

        passes = Passes()
        try:
            with Server.start(self._store, is_beside=True) as server:
                if not self._stop.is_set():
                    self._context.log(f"tracking: watch the run at {server.uri}")
                    step_back(THREAD_NICE)
                pause_s = SHIP_EVERY_S
                while not self._stop.wait(pause_s):
                    started = time.monotonic()
                    self._try(lambda: ship(self._context.folder, server.uri, passes=passes))
                    pause_s = max(SHIP_EVERY_S, FOLLOW_SHARE * (time.monotonic() - started))
                ship(self._context.folder, server.uri)
                self._failure = None
        except StackError as error:
            self._failure = error

    def _try(self, shipping: Callable[[], object]) -> None:
        """One pass while the run goes on; what fails now may well succeed at the end."""
        try:
            shipping()
        except StackError as error:
            self._failure = error


def _resolved(context: Context) -> dict[str, Any]:
    return {
        "run": context.run.manifest.model_dump(mode="json", by_alias=True),
        "dataset": context.dataset.manifest.model_dump(mode="json", by_alias=True),
        "models": {
            name: context.models.manifest.models[name].model_dump(mode="json") for name in context.model_names
        },
        "provenance": context.provenance.to_json(),
    }


def _tags(context: Context) -> dict[str, str]:
    provenance, device = context.provenance, context.run.manifest.device
    tags = {
        names.DATASET: context.dataset.manifest.name,
        names.DEVICE: device.kind,
        names.LINE: provenance.line,
        names.VERSION: provenance.version,
        names.GIT: f"{provenance.revision or 'none'}{' dirty' if provenance.dirty else ''}",
        names.IMAGE: provenance.image or "none",
    }
    return tags


def _params(context: Context) -> dict[str, Any]:
    manifest = context.run.manifest
    policy, train = manifest.policy, manifest.train
    return {
        **parameters(manifest, dict(context.facts("prepare")) if "prepare" in context.done else {}),
        "weights": policy.weights,
        "tokenizer": policy.tokenizer,
        "dtype": policy.dtype,
        "action_horizon": policy.action_horizon,
        "device": f"{manifest.device.kind} x {manifest.device.count}",
        "steps": train.steps,
        "global_batch": train.global_batch,
        "learning_rate": train.learning_rate,
        "seed": train.seed,
        "dataset": context.dataset.manifest.name,
        "lock": context.provenance.lock,
        "python": context.provenance.python,
    }


def _finals(context: Context, verdict: Verdict) -> dict[str, float]:
    finals = {f"{names.FINAL}{name}_stage_s": result.seconds for name, result in context.done.items()}
    finals[f"{names.FINAL}gates_failed"] = len(
        {row.gate for row in verdict.rows if row.ok is False and not row.exact}
    )
    if "audit" in context.done:
        finals[f"{names.FINAL}audit_errors"] = context.facts("audit")["errors"]
    if "train" in context.done:
        facts = context.facts("train")
        for name, key in (
            (names.FINAL_LOSS, "final_loss"),
            (names.FINAL_STEP_S, "step_s"),
            (names.FINAL_SAMPLES_PER_S, "samples_per_s"),
            (names.FINAL_PEAK_MEMORY_BYTES, "peak_memory_bytes"),
        ):
            if facts.get(key) is not None:
                finals[name] = float(facts[key])
    return finals
