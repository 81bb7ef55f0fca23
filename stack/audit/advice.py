"""The slice that keeps only safe fields, as YAML for the dataset manifest."""

from __future__ import annotations

from collections.abc import Sequence

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
        if not own:
            continue
        part = _by_fields(features[name], own, needs, width) or _by_runs(name, own, needs, width)
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
    lines = [f"- {{from: {feature.name}, field: {field}}}  # {safe[field]} channels" for field in chosen]
    others = [f"{field} ({count})" for field, count in safe.items() if field not in chosen]
    if others:
        lines.append("# safe as well: " + ", ".join(others))
    return lines


def _by_runs(name: str, channels: list[Channel], needs: PolicyNeeds, width: int) -> list[str] | None:
    lines: list[str] = []
    taken, at = 0, 0
    while at < len(channels) and taken < width:
        if not is_safe(channels[at], needs):
            at += 1
            continue
        start = at
        while at < len(channels) and is_safe(channels[at], needs) and taken < width:
            at, taken = at + 1, taken + 1
        lines.append(f"- {{from: {name}, at: [{start}, {at}]}}")
    return lines or None
