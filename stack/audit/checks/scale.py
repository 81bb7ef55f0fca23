"""Scale of each channel as the policy will see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stack.audit.checks.policy import in_words, with_slice
from stack.audit.declared import channel_name
from stack.audit.exact import ACTION, STATE, Channel, channels, exact_stats
from stack.audit.kinds import Case, check, kind
from stack.faults import Fault, Place, Severity

SHOWN = 6
RARE_FRAC = 0.01
NEARLY_FRAC = 1e-3
EXTREME = kind(
    "channel-extreme-scale",
    "error",
    "policy",
    title="a channel leaves [-1, 1] by far once normalised",
    consequence="an action goes into the flow-matching loss as it is: y^2 of the step is added to the "
    "squared error, and a batch with such a step throws the weights away",
    mend="keep only channels of a sane scale",
    also={"warning": "for actions between the two limits, and for states"},
)
STATE_CONSEQUENCE = (
    "pi0.5 writes the state into the prompt as one of 256 bins over [-1, 1] and silently cuts off what lies "
    "beyond: these values cannot be told apart. A policy that takes the state as a vector gets inputs of "
    "this magnitude"
)
CONSTANT = kind(
    "channel-constant",
    "note",
    "policy",
    title="a channel never changes",
    consequence="none for the loss (it maps to -1); it takes room in the prompt and teaches nothing. If "
    "the robot moves it later, q99 - q01 = 0 makes any change 2e8 times larger",
    mend="leave the channel out of the slice",
)
NEARLY = kind(
    "channel-nearly-constant",
    "note",
    "policy",
    title="a channel hardly changes",
    consequence="sensor noise is blown up to the full range [-1, 1] and is learnt like motion",
    mend="leave the channel out of the slice, unless this motion matters",
)
RARE = kind(
    "channel-rare-binary",
    "warning",
    "policy",
    title="a two-valued channel has its rarer value in under 1 % of the rows",
    consequence="q01 = q99, the range becomes 1e-8, and the rare value maps to up to 2e8",
    mend="leave the channel out, record more of the rare value, or normalise it by min and max",
)


@check("largest normalised magnitude", EXTREME, needs=["policy"])
def channel_scale(case: Case) -> Iterator[Fault]:
    assert case.policy is not None
    needs = case.policy
    known = channels(case.evidence, needs)
    wide = [c for c in known if c.largest > needs.warn_magnitude]
    actions = [c for c in wide if c.feature == ACTION]
    levels: list[tuple[Severity, list[Channel], float]] = [
        ("error", [c for c in actions if c.largest > needs.max_magnitude], needs.max_magnitude),
        ("warning", [c for c in actions if c.largest <= needs.max_magnitude], needs.warn_magnitude),
        ("warning", [c for c in wide if c.feature == STATE], needs.warn_magnitude),
    ]
    for severity, found, limit in levels:
        if not found:
            continue
        found = sorted(found, key=lambda c: -c.largest)
        name = found[0].feature
        total = sum(c.feature == name for c in known)
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        yield EXTREME.fault(
            f"{len(found)} of {total} channels of {name} pass the limit of {limit:g}: "
            + "; ".join(in_words(c) for c in found[:SHOWN])
            + more,
            severity=severity,
            consequence=STATE_CONSEQUENCE if name == STATE else None,
            mend=with_slice(case, EXTREME.mend),
            places=tuple(case.evidence.rows.place(c.row, c.feature, c.name) for c in found),
            count=len(found),
            data={"limit": limit, "channels": {c.name: c.largest for c in found}},
        )


@check("channels without motion", CONSTANT, NEARLY, RARE, needs=["policy"])
def channel_motion(case: Case) -> Iterator[Fault]:
    assert case.policy is not None
    for name in (STATE, ACTION):
        own = [c for c in channels(case.evidence, case.policy) if c.feature == name]
        constant = [c for c in own if c.is_constant]
        rare = {c.index: share for c in own if (share := _rare_share(case, c)) is not None}
        nearly = [c for c in own if not c.is_constant and c.index not in rare and _hardly_moves(c)]
        if constant:
            yield CONSTANT.fault(
                f"{len(constant)} of {len(own)} channels of {name} are constant: {_listed(constant)}",
                places=_places(constant),
                count=len(constant),
            )
        if nearly:
            yield NEARLY.fault(
                f"{len(nearly)} of {len(own)} channels of {name} span less than 1/1000 between q01 and q99: "
                f"{_listed(nearly)}",
                places=_places(nearly),
                count=len(nearly),
            )
        for channel in (c for c in own if c.index in rare):
            yield RARE.fault(
                f"{channel.name} is {channel.low:g} or {channel.high:g}, the rarer in"
                f" {rare[channel.index]:.2%} of the rows; it maps to |y| = {channel.largest:.3g}",
                where=case.evidence.rows.place(channel.row, name, channel.name),
            )


def _hardly_moves(channel: Channel) -> bool:
    """q01 to q99 under 1/1000 of the unit (radian, metre, full stroke), or of the magnitude where larger."""
    unit = max(1.0, abs(channel.low), abs(channel.high))
    return channel.q99 - channel.q01 < NEARLY_FRAC * unit


def _rare_share(case: Case, channel: Channel) -> float | None:
    """Share of the rarer of exactly two values, where it is under 1 %."""
    exact = exact_stats(case.evidence, channel.feature)
    if channel.is_constant or exact is None:
        return None
    if float(exact.q50.reshape(-1)[channel.index]) not in (channel.low, channel.high):
        return None  # the commoner of two values is the median
    values = case.evidence.rows.columns[channel.feature].values
    assert values is not None
    own = values[:, channel.index]
    own = own[np.isfinite(own)]
    low = float((own == channel.low).mean())
    high = float((own == channel.high).mean())
    share = min(low, high)
    return share if low + high == 1.0 and share < RARE_FRAC else None


def _listed(found: Sequence[Channel]) -> str:
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(channel.name for channel in found[:SHOWN]) + more


def _places(found: Sequence[Channel]) -> tuple[Place, ...]:
    return tuple(Place(feature=c.feature, channel=c.name) for c in found)


PAIRED = kind(
    "paired-grippers-differ",
    "warning",
    "policy",
    title="left and right gripper are on different scales",
    consequence="both are normalised to [-1, 1] apart, but what one opening means differs: metres on one "
    "side, share of the stroke on the other (BEHAVIOR-1K issue 1841)",
    mend="find out both units and have the recording delivered in one",
)
PAIRED_FACTOR = 10.0
_GRIPPERS = ("gripper", "effector", "claw")


@check("scales of paired grippers", PAIRED)
def paired_grippers(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    for name, feature in evidence.features.items():
        exact = exact_stats(evidence, name) if feature.names else None
        if exact is None or exact.q01.size != len(feature.names or ()):
            continue
        low, high = (np.asarray(a, np.float64).reshape(-1) for a in (exact.min, exact.max))
        where = {channel.lower(): i for i, channel in enumerate(feature.names or ())}
        for left, i in where.items():
            j = where.get(left.replace("left", "right"))
            if j is None or j == i or "left" not in left or not any(word in left for word in _GRIPPERS):
                continue
            spans = high[i] - low[i], high[j] - low[j]
            if min(spans) > 0 and max(spans) >= PAIRED_FACTOR * min(spans):
                yield PAIRED.fault(
                    f"{left} goes from {low[i]:.4g} to {high[i]:.4g}, its right one from {low[j]:.4g} to"
                    f" {high[j]:.4g}",
                    where=Place("meta/info.json", feature=name, channel=channel_name(feature, i)),
                )
