"""What is on the devices before any point: memory that others hold would be missed by every point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stack.devices.smi import Card
from stack.devices.witness import Use
from stack.train.preflight import Leftover


def in_words(use: Use, leftovers: Iterable[Leftover]) -> tuple[str, ...]:
    """One line a device, and one for each process on it; a card's system keeps some GB for itself."""
    return (*_lines(use), *(_leftover(left) for left in leftovers))


def _lines(use: Use) -> Iterator[str]:
    if not use.cards:
        yield f"before any point: other users of the devices cannot be seen: {use.problem}"
    for card in use.cards:
        where = "host" if card.id == "host" else f"card {card.id} ({card.name})"
        health = f", health {card.health}" if card.health not in (None, "OK") else ""
        yield (
            f"before any point: {where}: {card.used_bytes / 1e9:.1f} of {card.total_bytes / 1e9:.1f} GB in "
            f"use{health}"
        )
        yield from (_process(card, where) for card in [card] if card.processes)


def _process(card: Card, where: str) -> str:
    held = ", ".join(f"{p.name} (process {p.pid}, {p.used_bytes / 1e9:.1f} GB)" for p in card.processes)
    return f"warning: others hold memory on the {where}, which every point will miss: {held}"


def _leftover(left: Leftover) -> str:
    lost = "has lost its launcher and" if left.is_orphan else "of another run"
    return f"warning: process {left.pid} in {left.folder} {lost} is still there; it holds memory and devices"
