"""The slice that keeps only safe fields, as YAML for the dataset manifest."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence

from stack.audit.decisions import plain_line
from stack.audit.declared import short_field
from stack.audit.exact import ACTION, STATE, Channel
from stack.audit.kinds import PolicyNeeds
from stack.dataset.model import Feature

# What an arm's policy is usually given, in this order: joint angles, then grippers.
_FIRST_CHOICE = ("joint/position", "effector/position", "gripper/position")


def safe_slice(features: dict[str, Feature], channels: Sequence[Channel], needs: PolicyNeeds) -> str | None:
    """YAML for the manifest's `features:`, or None where no channel is safe.

    A field is safe when none of its channels is constant or leaves +-`warn_magnitude` once normalised. Of the
    safe fields joint and gripper positions are proposed where there are any, and the others named.
    """
    lines = ["features:"]
    for name, width in ((STATE, needs.max_state_dim), (ACTION, needs.max_action_dim)):
        own = [channel for channel in channels if channel.feature == name]
        if not own or name not in features:
            continue
        part = _by_fields(features[name], own, needs, width) or _by_runs(features[name], own, needs, width)
        if part is None:
            return None
        lines += [f"  {name}:", *(f"    {line}" for line in part)]
    return "\n".join(lines) if len(lines) > 1 else None


def is_safe(channel: Channel, needs: PolicyNeeds) -> bool:
    return not channel.is_constant and channel.largest <= needs.warn_magnitude


def _by_fields(feature: Feature, channels: list[Channel], needs: PolicyNeeds, width: int) -> list[str] | None:
    safe = {
        short_field(field): len(indices)
        for field, indices in feature.fields.items()
        if indices and all(i < len(channels) and is_safe(channels[i], needs) for i in indices)
    }
    chosen = [field for field in _FIRST_CHOICE if field in safe]
    if not chosen:
        for field in safe:
            if sum(safe[f] for f in chosen) + safe[field] <= width:
                chosen.append(field)
    if not chosen or sum(safe[field] for field in chosen) > width:
        return None
    lines = [
        f"- {{from: {_scalar(feature.name)}, field: {_scalar(field)}}}  # {safe[field]} channels"
        for field in chosen
    ]
    others = [f"{plain_line(field)} ({count})" for field, count in safe.items() if field not in chosen]
    if others:
        said = "safe as well: " + ", ".join(others)
        lines += textwrap.wrap(said, 68, initial_indent="# ", subsequent_indent="#   ")
    return lines


def _by_runs(feature: Feature, channels: list[Channel], needs: PolicyNeeds, width: int) -> list[str] | None:
    """Positions, where there is no field table: names that tell a first choice, else the first safe."""
    safe = [channel.index for channel in channels if is_safe(channel, needs)]
    names = feature.names or ()
    starts = [field.replace("/", "_") for field in _FIRST_CHOICE]
    named = [[i for i in safe if i < len(names) and names[i].startswith(start)] for start in starts]
    chosen = named if any(named) and sum(map(len, named)) <= width else [safe[:width]]
    lines = []
    for start, stop in (run for indices in chosen for run in _runs(indices)):
        said = f"  # {plain_line(names[start])} to {plain_line(names[stop - 1])}" if names else ""
        lines.append(f"- {{from: {_scalar(feature.name)}, at: [{start}, {stop}]}}{said}")
    return lines or None


def _scalar(text: str) -> str:
    """A YAML scalar for a flow mapping; names come from the delivery and may hold anything."""
    return text if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", text) else json.dumps(text)


def _runs(indices: list[int]) -> list[tuple[int, int]]:
    """Ascending numbers as half-open runs."""
    runs: list[tuple[int, int]] = []
    for i in indices:
        if runs and runs[-1][1] == i:
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
    return runs
