"""The stages of a run: what each does, and everything that decides its result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stack.errors import BadRequest, WorkFailed
from stack.files import read_json, sha256_file, write_json, write_text
from stack.manifests import (
    DatasetManifest,
    Loaded,
    ModelsManifest,
    RunManifest,
    load_dataset_manifest,
    load_models_manifest,
)
from stack.reproduce.hashing import HashCache, code_digest
from stack.reproduce.provenance import Provenance, write_provenance
from stack.reproduce.stage import Outcome, Stage, StageResult

Log = Callable[[str], None]


@dataclass
class Context:
    """One run: its manifests, where it works, and what its stages have given so far.

    Attributes:
        folder: the run's own folder, below `work/runs/`.
        parent: run_id of the run's journal, which sweep and training are nested under.
    """

    run: Loaded[RunManifest]
    dataset: Loaded[DatasetManifest]
    models: Loaded[ModelsManifest]
    work: Path
    folder: Path
    provenance: Provenance
    cache: HashCache
    log: Log
    parent: str | None = None
    done: dict[str, StageResult] = field(default_factory=dict)

    @property
    def mirror(self) -> Path:
        return self.run.path(self.run.manifest.mirror)

    @property
    def model_names(self) -> tuple[str, str]:
        policy = self.run.manifest.policy
        return policy.weights, policy.tokenizer

    def facts(self, stage: str) -> Mapping[str, Any]:
        return self.done[stage].facts

    def record_provenance(self, folder: Path) -> None:
        write_provenance(folder, self.provenance)


def open_context(run: Loaded[RunManifest], work: Path, provenance: Provenance, log: Log) -> Context:
    """Load the manifests that the run names, and check that they fit together.

    Raises:
        BadRequest: a manifest is wrong, or names a model that the models manifest does not have.
    """
    manifest = run.manifest
    allow = run.allow_outside
    dataset = load_dataset_manifest(run.path(manifest.dataset), allow_outside=allow)
    models = load_models_manifest(run.path(manifest.models), allow_outside=allow)
    for role, name, kind in (
        ("policy.weights", manifest.policy.weights, "weights"),
        ("policy.tokenizer", manifest.policy.tokenizer, "tokenizer"),
    ):
        model = models.manifest.models.get(name)
        if model is None or model.kind != kind:
            known = ", ".join(n for n, m in models.manifest.models.items() if m.kind == kind)
            raise BadRequest(
                "run-unknown-model",
                f"{role} is '{name}', which is no {kind} of {models.file.name}; it has: {known}",
                where=str(run.file),
            )
    if dataset.manifest.split is not None:
        raise BadRequest(
            "run-dataset-split",
            f"the dataset manifest '{dataset.manifest.name}' writes several; a run trains on one dataset",
            where=str(dataset.file),
            do="prepare the parts with `stack prepare`, and name the training part as a source of its own",
        )
    folder = work / "runs" / manifest.name
    cache = HashCache(work / "hashes.json")
    return Context(run, dataset, models, work, folder, provenance, cache, log)


def stage_names(manifest: RunManifest) -> tuple[str, ...]:
    """The run's stages in order."""
    names = ["demo"] if manifest.demo is not None else []
    names += ["prepare", "audit", "mirror", "doctor"]
    names += ["sweep"] if manifest.sweep is not None else []
    return (*names, "train")


def make_stage(name: str, context: Context) -> Stage:
    """The stage of that name; the stages before it are done."""
    return _MAKERS[name](context)


def _demo(context: Context) -> Stage:
    from stack.demo import is_replaceable

    folder = context.run.path(context.run.manifest.demo or "")
    if not is_replaceable(folder):
        raise BadRequest(
            "run-demo-folder-taken",
            f"'{context.run.manifest.demo}' holds something else than a demo, which would be lost",
            where=str(context.run.file),
            do=f"name another folder under demo:, or move {folder} away",
        )

    def work(out: Path, _resume: bool) -> Outcome:
        from stack.demo import write_demo

        write_demo(out, log=context.log)
        return Outcome({"folder": str(folder)})

    return Stage("demo", folder, {"code": code_digest("demo")}, work, is_whole_by_itself=True)


def _prepare(context: Context) -> Stage:
    sources = {}
    for source in context.dataset.manifest.sources:
        path = context.dataset.path(source.path)
        if not path.is_dir():
            raise BadRequest(
                "prepare-source-missing",
                f"the delivery '{source.path}' is not there",
                where=str(context.dataset.file),
                do=f"put it, or a link to it, at {path}",
            )
        sources[source.path] = context.cache.tree(path)

    def work(out: Path, _resume: bool) -> Outcome:
        from stack.prepare.record import prepare_recorded

        prepared = prepare_recorded(context.dataset, out=out, parent=context.parent, log=context.log)
        provenance = read_json(out / "meta" / "provenance.json", what="provenance")
        return Outcome(
            {
                "episodes": prepared.episodes,
                "frames": prepared.frames,
                "fps": read_json(out / "meta" / "info.json", what="info.json")["fps"],
                "cameras": len(prepared.cameras),
                "widths": prepared.widths,
                "content_digest": prepared.content_digest,
                "sources": [
                    {"name": source["name"], "digest": source["rows_digest"]}
                    for source in provenance["sources"]
                ],
            }
        )

    inputs = {
        "manifest": context.dataset.fingerprint,
        "sources": sources,
        "code": code_digest("dataset", "prepare"),
    }
    return Stage("prepare", context.folder / "prepare", inputs, work, is_whole_by_itself=True)


def _audit(context: Context) -> Stage:
    dataset = context.done["prepare"].folder
    policy, audit_section = context.run.manifest.policy, context.run.manifest.audit

    def work(out: Path, _resume: bool) -> Outcome:
        from stack.audit import PolicyNeeds, audit
        from stack.audit.html import render as render_html
        from stack.audit.text import render as render_text

        # The widths stay those of the pretrained heads: widening the policy in the manifest is no cure.
        needs = PolicyNeeds(
            name=policy.type,
            action_horizon=policy.action_horizon,
            tokenizer_max_length=policy.tokenizer_max_length,
        )
        report = audit(dataset, policy=needs, deep=audit_section.deep)
        write_json(out / "audit.json", report.to_json())
        write_text(out / "audit.html", render_html(report, dataset))
        errors = [f for f in report.faults if f.severity == "error" and f.code not in audit_section.allow]
        codes = sorted({f.code for f in errors})
        facts = {
            "errors": len(errors),
            "codes": codes,
            "warnings": sum(f.severity == "warning" for f in report.faults),
            "notes": sum(f.severity == "note" for f in report.faults),
        }
        summary = f"{len(errors)} errors: {', '.join(codes)}"
        return Outcome(
            facts, good=not errors, message=f"{summary}\n\n{render_text(report)}" if errors else ""
        )

    inputs = {
        "content": context.facts("prepare")["content_digest"],
        "dataset": context.cache.tree(dataset),
        "policy": policy.model_dump(mode="json"),
        "audit": audit_section.model_dump(mode="json"),
        "code": code_digest("dataset", "audit"),
    }
    return Stage("audit", context.folder / "audit", inputs, work)


def _mirror(context: Context) -> Stage:
    names = context.model_names
    pinned = {name: context.models.manifest.models[name] for name in names}
    demo = context.done["demo"].folder if "demo" in context.done else None

    def work(out: Path, _resume: bool) -> Outcome:
        from stack.faults import has_errors
        from stack.mirror import get, verify

        get(context.models, context.mirror, names=names, demo=demo, log=context.log)
        faults = verify(context.models.manifest, context.mirror, names=names)
        write_json(out / "mirror.json", [fault.to_json() for fault in faults])
        files = sum(len(model.files) for model in pinned.values())
        wrong = sum(fault.count for fault in faults if fault.severity == "error")
        facts = {"files": files, "verified": files - wrong, "folder": str(context.mirror)}
        message = "\n".join(f"{fault.code}: {fault.message} ({fault.where})" for fault in faults)
        return Outcome(facts, good=not has_errors(faults), message=message)

    inputs = {
        "models": {name: model.model_dump(mode="json") for name, model in pinned.items()},
        "code": code_digest("mirror", "demo"),
    }
    made = tuple(context.mirror / name for name in names)
    return Stage("mirror", context.folder / "mirror", inputs, work, also_makes=made)


def _doctor(context: Context) -> Stage:
    manifest = context.run.manifest

    def work(out: Path, _resume: bool) -> Outcome:
        from stack.devices.doctor import Needs, examine
        from stack.faults import has_errors

        # Several hosts share the devices of a run; this one is asked for at most the eight of a node.
        needs = Needs(
            kind=manifest.device.kind,
            count=min(manifest.device.count, 8),
            workers=manifest.train.workers,
            disk=context.folder,
        )
        found = examine(needs)
        write_json(out / "doctor.json", found.to_json())
        message = "\n".join(f"{f.severity}[{f.code}]: {f.message}\n  do: {f.mend}" for f in found.faults)
        errors = sum(f.severity == "error" for f in found.faults)
        return Outcome({"errors": errors}, good=not has_errors(found.faults), message=message)

    inputs = {
        "device": manifest.device.model_dump(mode="json"),
        "workers": manifest.train.workers,
        "host": os.uname().nodename,
        "cores": len(os.sched_getaffinity(0)),
        "lock": context.provenance.installed_lock,
        "code": code_digest("devices"),
    }
    return Stage("doctor", context.folder / "doctor", inputs, work)


def _training_inputs(context: Context, *rooms: str) -> dict[str, Any]:
    dataset = context.done["prepare"].folder
    return {
        "content": context.facts("prepare")["content_digest"],
        "stats": sha256_file(dataset / "meta" / "stats.json"),
        "models": {name: context.cache.tree(context.mirror / name) for name in context.model_names},
        "policy": context.run.manifest.policy.model_dump(mode="json"),
        "device": context.run.manifest.device.model_dump(mode="json"),
        "lock": context.provenance.installed_lock,
        "code": code_digest("train", "devices", *rooms),
    }


def _sweep(context: Context) -> Stage:
    sweep_section = context.run.manifest.sweep
    assert sweep_section is not None

    def work(out: Path, resume: bool) -> Outcome:
        from stack.sweep import sweep

        result = sweep(
            context.run,
            dataset=context.done["prepare"].folder,
            mirror=context.mirror,
            models=context.models.manifest,
            out=out,
            resume=resume,
            parent=context.parent,
            record_provenance=context.record_provenance,
            log=context.log,
        )
        points = [
            {"devices": p.devices, "batch": p.batch, "status": p.status, "step_s": p.step_s}
            for p in result.points
        ]
        works = any(p.status == "ok" for p in result.points)
        return Outcome({"points": points}, good=works, message="" if works else "no point of the sweep ran")

    inputs = {
        **_training_inputs(context, "sweep"),
        "sweep": sweep_section.model_dump(mode="json"),
        "train": context.run.manifest.train.model_dump(mode="json"),
    }
    return Stage("sweep", context.folder / "sweep", inputs, work, resumable=True)


def _train(context: Context) -> Stage:
    def work(out: Path, resume: bool) -> Outcome:
        from stack.train import train

        result = train(
            context.run,
            dataset=context.done["prepare"].folder,
            mirror=context.mirror,
            models=context.models.manifest,
            out=out,
            resume=resume,
            parent=context.parent,
            record_provenance=context.record_provenance,
            log=context.log,
        )
        if result.outcome == "stopped":
            raise KeyboardInterrupt  # its folder stays as it is, and the next call goes on from there
        if result.outcome == "killed":
            raise WorkFailed("train-killed", result.message, do="the same command goes on from there")
        return Outcome(result.to_json(), good=result.outcome == "finished", message=result.message or "")

    inputs = {
        **_training_inputs(context),
        "train": context.run.manifest.train.model_dump(mode="json"),
    }
    return Stage("train", context.folder / "train", inputs, work, resumable=True)


_MAKERS: dict[str, Callable[[Context], Stage]] = {
    "demo": _demo,
    "prepare": _prepare,
    "audit": _audit,
    "mirror": _mirror,
    "doctor": _doctor,
    "sweep": _sweep,
    "train": _train,
}
