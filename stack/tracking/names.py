"""The names that tracking uses: experiments, tags, metrics. One place, so that runs of all kinds compare.

A tag is a fact that people filter by; a parameter a value that they compare; a metric a value that has a
curve, or, under `final/`, one that belongs into the table of runs.
"""

from __future__ import annotations

PREFIX = "stack/"
DATA = "stack/data"
SWEEP = "stack/sweep"
TRAIN = "stack/train"
REPRODUCE = "stack/reproduce"

EXPERIMENTS: dict[str, str] = {
    DATA: "Prepared datasets: counts, provenance and audit of each `stack prepare`.",
    SWEEP: (
        "Batch-size sweeps. A parent run a sweep, a nested run a point. Compare the points by "
        "`final/samples_per_s` and `final/peak_memory_bytes`; `stack.outcome = oom` ran out of memory."
    ),
    TRAIN: (
        "Fine-tunings. Look first at `train/loss`, then at `final/` in the table; filter by the tags "
        "`stack.dataset`, `stack.device`, `stack.outcome`."
    ),
    REPRODUCE: (
        "Whole chains, from deliveries to a verdict. A parent run a `stack reproduce`, with its "
        "preparation, sweep and training nested below; the tag `stack.verdict` says how it compares with "
        "what the manifest expects, and the artifact `verdict.html` why."
    ),
}
"""What each experiment is for, as its page says; Markdown."""

# Tags. Those that the shipper sets come first; the others are for the writers of journals.
RUN_ID = "stack.run_id"
KIND = "stack.kind"  # data, sweep, train, reproduce: the last part of the journal's experiment
PARENT = "stack.parent_run_id"
ATTEMPT = "stack.attempt"  # counts from 1; more than 1: the run was resumed
OUTCOME = "stack.outcome"  # ok, oom, nonfinite, failed, killed, running; the writer's word comes first
NONFINITE = "stack.nonfinite"  # how many values were not finite, and the first of them
SHIPPED = "stack.shipped_bytes"  # bytes of the journal that the server has
NOTES = "stack.ship_notes"  # what could not be shown as it was written
PARAM_CHANGED = "param-changed."  # + name of the parameter
PARAM_CUT = "param-cut."  # + name of the parameter

VERDICT = "stack.verdict"  # identical, within-band, different-at-<gate>, cannot-judge
DATASET = "stack.dataset"
DATASET_DIGEST = "stack.dataset_digest"
WEIGHTS_DIGEST = "stack.weights_digest"
DEVICE = "stack.device"
DRIVER = "stack.driver"
IMAGE = "stack.image"
LINE = "stack.line"  # production or current: which set of versions
VERSION = "stack.version"
GIT = "stack.git"

DESCRIPTION = "mlflow.note.content"  # as a tag it replaces a run's description; Markdown

# Metrics that appear in more than one kind of run.
LOSS = "train/loss"
STEP_S = "perf/step_s"
SAMPLES_PER_S = "perf/samples_per_s"
PEAK_MEMORY_BYTES = "mem/peak_bytes"
FINAL_LOSS = "final/loss"
FINAL_STEP_S = "final/step_s"
FINAL_SAMPLES_PER_S = "final/samples_per_s"
FINAL_PEAK_MEMORY_BYTES = "final/peak_memory_bytes"


def kind_of(experiment: str) -> str:
    """`train` of `stack/train`."""
    return experiment.rsplit("/", 1)[-1]
