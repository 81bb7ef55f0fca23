"""One repair: what it mends, said before it is done, and how it is done on the copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Repair:
    """A repair of one file or kind of file.

    Attributes:
        codes: the fault codes that it is to mend.
        text: what it does, with both numbers where there are two.
    """

    codes: tuple[str, ...]
    file: str
    text: str

    def to_json(self) -> dict[str, Any]:
        return {"codes": list(self.codes), "file": self.file, "text": self.text}


@dataclass(frozen=True)
class Step(Repair):
    """A repair that can be done.

    Attributes:
        apply: does it in the copy's folder.
    """

    apply: Callable[[Path], None]


@dataclass(frozen=True)
class Left:
    """What is left as it is, and why it could not be mended without guessing."""

    code: str
    why: str

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "why": self.why}
