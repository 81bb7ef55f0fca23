"""What a policy needs: features, widths, and prompts that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stack.audit.advice import safe_slice
from stack.audit.evidence import whole
from stack.audit.exact import ACTION, STATE, Channel, channels, normalise, quantiles_for_training, usable_rows
from stack.audit.kinds import Case, Kind, check, kind
from stack.faults import Fault, Place

INFO = "meta/info.json"
FEATURE_MISSING = kind(
    "policy-feature-missing",
    "error",
    "policy",
    title="a feature that the policy needs is not declared",
    consequence="the policy cannot be built, or trains without what it was to learn from",
    mend="in the dataset manifest: `features: {action: [{from: NAME, ...}]}`, or rename the feature",
)
STATE_WIDE = kind(
    "state-too-wide",
    "error",
    "policy",
    title="observation.state is wider than the policy's state",
    consequence="pi0.5 writes every state value into the prompt as text: more values than the pretrained "
    "width push the end of the prompt past the tokenizer's limit, and it is cut off silently. Policies with "
    "a state projection fail on the width",
    mend="slice the state in the dataset manifest",
)
ACTION_WIDE = kind(
    "action-too-wide",
    "error",
    "policy",
    title="action is wider than the policy's action",
    consequence="the action projection fails on the width; widened, parts of it stay randomly initialised",
    mend="slice the action in the dataset manifest",
)
NOT_FLAT = kind(
    "vector-not-flat",
    "error",
    "policy",
    title="state or action is a table in every row, not a vector",
    consequence="the policy takes the first axis for its width, pads the last one, and stops at the first "
    "batch; rows that are chunks of actions already would be cut into chunks once more",
    mend="export one state and one action a frame, each a vector",
)
PROMPT = kind(
    "prompt-too-long",
    "error",
    "policy",
    title="the prompt is longer than the tokenizer's limit",
    consequence="it is cut at the right without a message: the last state values and 'Action:' are lost",
    mend="shorten the task text (`tasks:` in the dataset manifest) or slice the state",
    also={"warning": "where no tokenizer was given and the length is estimated"},
)
SAMPLED_ROWS = 500
SHOWN = 6


@check("features of the policy", FEATURE_MISSING, needs=["policy"])
def policy_features(case: Case) -> Iterator[Fault]:
    features = case.evidence.features
    if not features:
        return
    for name in (STATE, ACTION):
        if name not in features:
            near = [n for n in features if n.split(".")[-1].startswith(name.split(".")[-1][:5])]
            yield FEATURE_MISSING.fault(
                f"there is no {name}" + (f"; near it: {', '.join(near[:5])}" if near else ""),
                where=Place(INFO, feature=name),
            )
    if not any(feature.is_camera for feature in features.values()):
        yield FEATURE_MISSING.fault("there is no camera", where=Place(INFO, feature="observation.images"))


@check("shapes of state and action", NOT_FLAT, needs=["policy"])
def policy_shapes(case: Case) -> Iterator[Fault]:
    for name in (STATE, ACTION):
        feature = case.evidence.features.get(name)
        column = case.evidence.rows.columns.get(name)
        nested = sum(_depth(stored) > 1 for stored in column.types) if column else 0
        shape = list(feature.shape) if feature and feature.shape else []
        if len(shape) > 1 or nested:
            stored = f"; stored as {', '.join(map(str, column.types))}" if column else ""
            yield NOT_FLAT.fault(
                f"{name} has shape {shape}{stored}", where=Place(INFO, feature=name), data={"shape": shape}
            )


def _depth(stored: pa.DataType) -> int:
    depth = 0
    while pa.types.is_list(stored) or pa.types.is_large_list(stored) or pa.types.is_fixed_size_list(stored):
        depth, stored = depth + 1, stored.value_type
    return depth


@check("widths of state and action", STATE_WIDE, ACTION_WIDE, needs=["policy"])
def policy_widths(case: Case) -> Iterator[Fault]:
    assert case.policy is not None
    found: tuple[tuple[str, int, Kind], ...] = (
        (STATE, case.policy.max_state_dim, STATE_WIDE),
        (ACTION, case.policy.max_action_dim, ACTION_WIDE),
    )
    known = channels(case.evidence, case.policy)
    for name, limit, wide in found:
        feature = case.evidence.features.get(name)
        column = case.evidence.rows.columns.get(name)
        declared = int(np.prod(feature.shape)) if feature and feature.shape else 0
        width = max(declared, column.width if column else 0)
        if width <= limit:
            continue
        own = [channel for channel in known if channel.feature == name]
        worst = sorted(own, key=lambda channel: -channel.largest)[:SHOWN]
        worst = [channel for channel in worst if channel.largest > case.policy.warn_magnitude]
        message = f"{name} is {width} wide, {case.policy.name} takes {limit}"
        if worst:
            message += ". Beyond scale in it: " + "; ".join(in_words(channel) for channel in worst)
        yield wide.fault(
            message,
            where=Place(INFO, feature=name),
            mend=with_slice(case, wide.mend),
            data={"width": width, "limit": limit, "worst": {c.name: c.largest for c in worst}},
        )


def in_words(channel: Channel) -> str:
    """One channel's scale: what it maps to, from what, and for an action what that does to the loss."""
    text = (
        f"{channel.name} reaches |y| = {channel.largest:.4g}"
        f" (values {channel.low:.4g} to {channel.high:.4g}, q01 {channel.q01:.4g}, q99 {channel.q99:.4g})"
    )
    if channel.chunk_loss is not None:
        text += f", y^2 = {channel.largest**2:.3g}, adds {channel.chunk_loss:.3g} to a sample's mean loss"
    return text


def with_slice(case: Case, mend: str) -> str:
    """The mend with the slice that keeps safe channels only, ready to paste into the dataset manifest."""
    assert case.policy is not None
    known = channels(case.evidence, case.policy)
    yaml = safe_slice(case.evidence.features, known, case.policy) if known else None
    return f"{mend}:\n{yaml}" if yaml else mend


@check("length of the prompts", PROMPT, needs=["policy"])
def prompt_lengths(case: Case) -> Iterator[Fault]:
    assert case.policy is not None
    evidence, needs = case.evidence, case.policy
    texts = {whole(entry.index): entry.text for entry in evidence.tasks.entries}
    states = _state_texts(case)
    count, said = _counter(needs.tokenizer)
    for index, text in texts.items():
        if not isinstance(text, str):
            continue
        cleaned = text.strip().replace("_", " ").replace("\n", " ")
        length = max(count(f"Task: {cleaned}, State: {state};\nAction: ") for state in states)
        if length > needs.tokenizer_max_length:
            yield PROMPT.fault(
                f"task {index} ({cleaned[:60]!r}) makes a prompt of {length} tokens ({said});"
                f" {needs.tokenizer_max_length} fit",
                where=Place(evidence.tasks.file, feature="task"),
                severity="error" if said == "counted" else "warning",
                data={"task_index": index, "tokens": length, "limit": needs.tokenizer_max_length},
            )


def _state_texts(case: Case) -> list[str]:
    """The longest state texts among evenly chosen rows, as pi0.5's processor writes them.

    256 bins over [-1, 1], lower values -1; lerobot 0.4 first pads the state with zeros to the policy's width.
    """
    assert case.policy is not None
    evidence, width = case.evidence, case.policy.max_state_dim
    chosen, rows = quantiles_for_training(evidence, STATE, case.policy), usable_rows(evidence, STATE)
    column = evidence.rows.columns.get(STATE)
    if chosen is None or column is None or column.values is None or not len(rows):
        return [" ".join(["128"] * width)]
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, SAMPLED_ROWS).astype(np.int64))]
    y = normalise(column.values[rows], chosen[1], chosen[2], case.policy.span_added)
    bins = discretise(y)
    pads = ["128"] * max(0, width - bins.shape[1])
    lines = {" ".join([*map(str, row), *pads]) for row in bins.tolist()}
    return sorted(lines, key=len, reverse=True)[:3]


def discretise(y: NDArray[np.float32]) -> NDArray[np.int64]:
    """pi0.5's bins of a normalised state: -1 below -1, then 0 to 255."""
    return np.digitize(y, np.linspace(-1, 1, 257)[:-1]).astype(np.int64) - 1


def _counter(tokenizer: Path | None) -> tuple[Callable[[str], int], str]:
    """How to count tokens, and what to call the count."""
    file = tokenizer / "tokenizer.json" if tokenizer else None
    if file is None or not file.is_file():
        return _estimate, "estimated"
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return _estimate, "estimated"
    loaded = Tokenizer.from_file(str(file))
    loaded.no_truncation()
    return lambda text: len(loaded.encode(text).ids), "counted"


def _estimate(prompt: str) -> int:
    """Gemma's way roughly: each digit and the space before a number a token, four letters a token, a Chinese
    character a token."""
    head, _, tail = prompt.partition(", State: ")
    letters = sum(ch.isascii() for ch in head)
    digits = sum(ch.isdigit() or ch in " -" for ch in tail.partition(";")[0])
    return 1 + -(-letters // 4) + (len(head) - letters) + 3 + digits + 5
