"""Proof that a tokenizer gives the ids that it must: fixed texts against fixed ids.

A folder with some of its files missing still loads in transformers 5 and gives wrong ids without a word
(all zeros, or a wrong BOS), so that loading proves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stack.errors import BadRequest, NotAble, StackError
from stack.manifests.models import Golden

PROBE_TEXTS = (
    "Task: pick up the red cube and place it into the box, State: 128 0 255 17;\nAction: ",
    "Task: 把红色方块放进左边的盒子, State: 12 200;\nAction: ",
)
_CONTEXT_IDS = 3


@dataclass(frozen=True)
class GoldenDifference:
    """The first text whose ids differ, and the first place in it.

    Attributes:
        position: index of the first id that differs; the shorter length where one list ends early.
    """

    text: str
    position: int
    expected: tuple[int, ...]
    got: tuple[int, ...]

    def __str__(self) -> str:
        around = slice(max(0, self.position - _CONTEXT_IDS), self.position + _CONTEXT_IDS)
        return (
            f"text {self.text!r}: id {self.position} differs, expected ...{list(self.expected[around])}... "
            f"({len(self.expected)} ids), got ...{list(self.got[around])}... ({len(self.got)} ids)"
        )


@dataclass(frozen=True)
class GoldenResult:
    """Outcome of a golden check.

    Attributes:
        checked: texts that were encoded, up to and with the first that differs.
        difference: None when all agree.
        loader: what encoded them.
    """

    checked: int
    difference: GoldenDifference | None
    loader: str

    @property
    def ok(self) -> bool:
        """True when there was something to check and all of it agrees."""
        return self.checked > 0 and self.difference is None


Encode = Callable[[str], Sequence[int]]


def check(tokenizer_dir: Path, golden: Sequence[Golden]) -> GoldenResult:
    """Encode with the tokenizer as pi0.5's processor loads and calls it; never a hub.

    Raises:
        BadRequest: the folder is not there, or transformers cannot load a tokenizer from it.
        NotAble: transformers is not installed.
    """
    _require_folder(tokenizer_dir)
    # Read when transformers is first imported; some versions ask a hub about a local folder without it.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise NotAble(
            "transformers-missing", f"transformers cannot be imported: {error}", do="make setup"
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_dir), local_files_only=True)
    except Exception as error:
        raise _not_loaded(tokenizer_dir, error) from error
    return _compare(lambda text: list(tokenizer(text)["input_ids"]), golden, type(tokenizer).__name__)


def check_without_torch(tokenizer_dir: Path, golden: Sequence[Golden]) -> GoldenResult:
    """As `check`, from `tokenizer.json` alone, for machines with neither torch nor transformers.

    Raises:
        BadRequest: no `tokenizer.json` that the `tokenizers` library can load.
        NotAble: `tokenizers` is not installed.
    """
    return _compare(encoder_without_torch(tokenizer_dir), golden, "tokenizers")


def encoder_without_torch(tokenizer_dir: Path) -> Encode:
    """Text to ids, special tokens added; raises as `check_without_torch` does."""
    _require_folder(tokenizer_dir)
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise NotAble(
            "tokenizers-missing", f"tokenizers cannot be imported: {error}", do="make setup"
        ) from error
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    except Exception as error:
        raise _not_loaded(tokenizer_dir, error) from error
    return lambda text: list(tokenizer.encode(text).ids)


def _compare(encode: Encode, golden: Sequence[Golden], loader: str) -> GoldenResult:
    for number, item in enumerate(golden, start=1):
        got = tuple(int(id) for id in encode(item.text))
        if got != item.ids:
            pairs = zip(item.ids, got, strict=False)
            shorter = min(len(item.ids), len(got))
            position = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
            return GoldenResult(number, GoldenDifference(item.text, position, item.ids, got), loader)
    return GoldenResult(len(golden), None, loader)


def _require_folder(tokenizer_dir: Path) -> None:
    # A path that is not there would be taken for a repository's name on a hub.
    if not tokenizer_dir.is_dir():
        raise BadRequest(
            "tokenizer-missing",
            "the tokenizer's folder is not there",
            where=str(tokenizer_dir),
            do="fetch it with 'stack mirror get'",
        )


def _not_loaded(tokenizer_dir: Path, error: Exception) -> StackError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return BadRequest(
        "tokenizer-not-loaded",
        f"no tokenizer could be loaded: {lines[0]}",
        where=str(tokenizer_dir),
        do="run 'stack mirror verify'; tokenizer.json and tokenizer_config.json are both needed",
    )
