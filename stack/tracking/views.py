"""What the pages of an experiment show first: what it is for, and a table with the columns that matter.

The table is a view that MLflow's own page can share: a tag of the experiment holds its state, and an address
names the tag. Source: the user interface of MLflow 3.17, `viewStateShareKey`.
"""

from __future__ import annotations

import json

from stack.tracking import names

ML_MODE = "workflowType=machine_learning"  # else pages open in the mode for chat models
VIEW = "stack"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"

DURATION = "attributes.`Duration`"
WIDTHS = {  # pixels, where the page's own would cut what is read first
    f"tags.`{names.VERDICT}`": 190,
    f"metrics.`{names.FINAL_SAMPLES_PER_S}`": 150,
    f"metrics.`{names.FINAL_PEAK_MEMORY_BYTES}`": 190,
}
VIEW_DEFAULTS = {  # the state that the page itself would share; source: MLflow's user interface
    "searchFilter": "",
    "orderByKey": "attributes.start_time",
    "orderByAsc": False,
    "startTime": "ALL",
    "lifecycleFilter": "Active",
    "modelVersionFilter": "All Runs",
    "datasetsFilter": [],
}

EXPERIMENTS: dict[str, str] = {
    names.DATA: "prepared datasets: counts, provenance and audit of each `stack prepare`.",
    names.SWEEP: (
        "batch-size sweeps, a parent run a sweep, a nested run a point. A sweep's own row shows its fastest "
        "point. Open it, select points and compare `final_samples_per_s` and `final_peak_memory_bytes`; the "
        "outcome `oom` ran out of memory."
    ),
    names.TRAIN: (
        "fine-tunings. Open a run, then its metric `train/loss`; filter by the tags `stack.*`. A run that "
        "was resumed or tried again has its earlier attempts nested below it, each with its own curve."
    ),
    names.REPRODUCE: (
        "whole chains, from deliveries to a verdict; preparation, sweep and training are nested below. "
        "`stack.verdict` says how a run compares with what its manifest expects, `verdict.html` why. Earlier "
        "attempts of a run are nested below it too."
    ),
}
"""What each experiment is for, as its page says after a link to its table; Markdown."""

_SPEEDS = (f"metrics.`{names.FINAL_SAMPLES_PER_S}`", f"metrics.`{names.FINAL_STEP_S}`")
VIEWS: dict[str, tuple[str, ...]] = {
    names.DATA: (
        f"tags.`{names.OUTCOME}`",
        "metrics.`final_episodes`",
        "metrics.`final_frames`",
        "metrics.`final_audit_errors`",
        "metrics.`final_notes`",
    ),
    names.SWEEP: (
        f"tags.`{names.OUTCOME}`",
        "params.`devices`",
        "params.`batch`",
        *_SPEEDS,
        f"metrics.`{names.FINAL_PEAK_MEMORY_BYTES}`",
    ),
    names.TRAIN: (
        f"tags.`{names.OUTCOME}`",
        f"tags.`{names.ATTEMPT}`",
        f"metrics.`{names.FINAL_LOSS}`",
        *_SPEEDS,
        "params.`train.global_batch`",
        "params.`train.steps`",
        f"tags.`{names.DATASET}`",
        f"tags.`{names.DEVICE}`",
    ),
    names.REPRODUCE: (
        f"tags.`{names.VERDICT}`",
        f"tags.`{names.OUTCOME}`",
        f"metrics.`{names.FINAL_LOSS}`",
        *_SPEEDS,
        "params.`global_batch`",
        f"tags.`{names.DATASET}`",
        f"tags.`{names.DEVICE}`",
    ),
}
"""The columns that each experiment's table shows, in MLflow's own notation."""


def table(experiment_id: str) -> str:
    """The address of an experiment's table with its columns, relative to the server's root."""
    return f"#/experiments/{experiment_id}/runs?viewStateShareKey={VIEW}&{ML_MODE}"


def experiment_tags(experiment_id: str, name: str) -> dict[str, str]:
    """The description and the view of an experiment; none for one that is not ours."""
    if name not in EXPERIMENTS:
        return {}
    columns = [*VIEWS[name], DURATION]
    view = {**VIEW_DEFAULTS, "selectedColumns": columns, "columnOrder": columns, "columnWidths": WIDTHS}
    link = f"[**Open the table with its columns**]({table(experiment_id)})"
    return {names.DESCRIPTION: f"{link}: {EXPERIMENTS[name]}", VIEW_TAG: json.dumps(view)}
