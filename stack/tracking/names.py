"""The names that tracking uses: experiments, tags, metrics. One place, so that runs of all kinds compare.

A tag is a fact that people filter by; a parameter a value that they compare; a metric a value that has a
curve, or, named `final_...`, one of the whole run, for the table. Those have no slash in their name because
a run's page draws metrics with a slash first, and a single point is no curve.
"""

from __future__ import annotations

DATA = "stack/data"
SWEEP = "stack/sweep"
TRAIN = "stack/train"
REPRODUCE = "stack/reproduce"

# Tags. Those that the shipper sets come first; the others are for the writers of journals.
RUN_ID = "stack.run_id"
KIND = "stack.kind"  # data, sweep, train, reproduce: the last part of the journal's experiment
PARENT = "stack.parent_run_id"
ATTEMPT = "stack.attempt"  # counts from 1; more than 1: the run was resumed or tried again
RESUMED_AFTER = "stack.resumed_after_step"  # the curves up to there are those of the attempt before
SUPERSEDED = "stack.superseded_by"  # the MLflow run of the newest attempt
OUTCOME = "stack.outcome"  # ok, oom, nonfinite, failed, killed, running; the writer's word comes first
NONFINITE = "stack.nonfinite"  # how many values were not finite, and the first of them
SHIPPED = "stack.shipped"  # how much of the journal the server has: bytes, and their hash
THINNED = "stack.thinned"  # how many points of how many are shown; all are in the journal
NOTES = "stack.ship_notes"  # what could not be shown as it was written
PARAM_CHANGED = "param-changed."  # + name of the parameter
PARAM_CUT = "param-cut."  # + name of the parameter

MESSAGE = "stack.message"  # how it ended, in words
VERDICT = "stack.verdict"  # identical, within-band, different-at-<gate>, cannot-judge
KEEP = "stack.keep"  # set by a person: retention never deletes this run, nor what is nested with it
DATASET = "stack.dataset"
DATASET_DIGEST = "stack.dataset_digest"
WEIGHTS = "stack.weights"
WEIGHTS_DIGEST = "stack.weights_digest"
DEVICE = "stack.device"
DRIVER = "stack.driver"
IMAGE = "stack.image"
LINE = "stack.line"  # production or current: which set of versions
VERSION = "stack.version"
GIT = "stack.git"

RUN = "stack.run"  # the run manifest's name

CHECKPOINT = "stack.checkpoint"  # of a model version: sha256 of the weights, attempt and run_id
PARENT_RUN = "mlflow.parentRunId"  # what nests runs in the page
DESCRIPTION = "mlflow.note.content"  # as a tag it replaces a run's description; Markdown

# Metrics that appear in more than one kind of run.
LOSS = "train/loss"
STEP_S = "perf/step_s"
SAMPLES_PER_S = "perf/samples_per_s"
PEAK_MEMORY_BYTES = "mem/peak_bytes"
FINAL = "final_"
FINAL_LOSS = "final_loss"
FINAL_STEP_S = "final_step_s"
FINAL_SAMPLES_PER_S = "final_samples_per_s"
FINAL_PEAK_MEMORY_BYTES = "final_peak_memory_bytes"


FIRST_TAGS = (VERDICT, OUTCOME, DATASET, DEVICE, IMAGE, KIND)
"""Tags that a run's page shows first."""


def kind_of(experiment: str) -> str:
    """`train` of `stack/train`."""
    return experiment.rsplit("/", 1)[-1]
