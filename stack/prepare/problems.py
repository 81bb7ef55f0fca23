"""Problems are collected and refused together, so that one run shows all that is to be decided."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stack.errors import StackError
from stack.manifests.dataset import Source
from stack.prepare.episodes import ranges

PLAIN = re.compile(r"[\w./][\w./-]*")  # what YAML takes as text without quotes
FEATURES = "\n  features:\n"
OWN_NUMBER = re.compile(r"exclude_episodes: \[\d+\]")  # of one problem; the block names all of them


@dataclass(frozen=True)
class Settles:
    """Lines of one source's entry in the manifest that settle a problem.

    Attributes:
        decide: key -> answer, if the error's `do` is true of the recording.
        exclude: episodes to leave out.
        of: how many the source gives; leaving out all of them settles nothing, and is not proposed.
    """

    source: Source
    decide: Mapping[str, str] = field(default_factory=dict)
    exclude: tuple[int, ...] = ()
    of: int = 0


class Problems:
    """Refusals found so far."""

    def __init__(self) -> None:
        self._errors: list[StackError] = []
        self._settles: list[Settles] = []

    def add(self, error: StackError, settles: Settles | None = None) -> None:
        self._errors.append(error)
        self._settles += [settles] if settles is not None else []

    def raise_if_any(self) -> None:
        """Raise the first problem, with the others in its text, and one block of lines that settles them.

        Raises:
            StackError: of the first problem's type, id and exit code.
        """
        if not self._errors:
            return
        first, rest = self._errors[0], self._errors[1:]
        what = first.what
        for error in rest:
            what += f"\n  also[{error.id}]: {error.what}"
            what += f"\n    at: {error.where}" if error.where else ""
        told = (OWN_NUMBER.sub("exclude the episode", error.do) for error in self._errors)
        do = list(dict.fromkeys(filter(None, told if self._settles else (e.do for e in self._errors))))
        block = _block(self._settles)
        do = _under_one_key(do)
        do += [f"in the manifest:\nsources:\n{block}"] if block else []
        raise type(first)(first.id, what, where=first.where, do="\n".join(do), exit=first.exit)


def _under_one_key(do: list[str]) -> list[str]:
    """Lines for several features under one `features:`, as a manifest may have the key only once."""
    groups: dict[str, list[str]] = {}
    for text in do:
        head, key, lines = text.partition(FEATURES)
        groups.setdefault(head + key, []).extend([lines] if key else [])
    return [head + "\n".join(lines) for head, lines in groups.items()]


def _block(settles: list[Settles]) -> str:
    """What stands under `sources:` with all answers, each key once, and what the manifest says already."""
    lines: list[str] = []
    for path in dict.fromkeys(entry.source.path for entry in settles):
        own = [entry for entry in settles if entry.source.path == path]
        said = own[0].source
        answers = said.decide.model_dump(exclude_defaults=True)
        for entry in own:
            answers.update(entry.decide)
        excluded = {number for entry in own for number in entry.exclude}
        if 0 < max(entry.of for entry in own) <= len(excluded):
            excluded = set()
        if not excluded and not any(entry.decide for entry in own):
            continue
        excluded |= {*said.exclude_episodes}
        lines.append(f"  - path: {path if PLAIN.fullmatch(path) else json.dumps(path, ensure_ascii=False)}")
        if answers:
            pairs = ", ".join(f"{key}: {answer}" for key, answer in answers.items())
            lines.append(f"    decide: {{{pairs}}}")
        if excluded:
            runs = (f'"{run}"' if "-" in run else run for run in ranges(excluded).split(", "))
            lines.append(f"    exclude_episodes: [{', '.join(runs)}]")
    return "\n".join(lines)
