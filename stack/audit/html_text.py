"""Texts of a dataset, made safe to stand in a page."""

from __future__ import annotations

from html import escape

LONGEST = 4000


def esc(text: object) -> str:
    """Escaped for element content and quoted attributes.

    Control and direction-changing characters, which a hostile or broken name may carry to hide what it says,
    are shown as their code; HTML allows most of them nowhere.
    """
    said = str(text)
    if len(said) > LONGEST:
        said = f"{said[:LONGEST]} ... ({len(said) - LONGEST} characters more)"
    return escape("".join(_shown(ch) for ch in said), quote=True)


def coded(text: object) -> str:
    """Like `esc`, with what stands between backticks as code."""
    parts = esc(text).split("`")
    if len(parts) % 2 == 0:  # one backtick without a partner: a name may hold one
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _shown(ch: str) -> str:
    if ch in "\n\t" or ch.isprintable():
        return ch
    return f"\\u{ord(ch):04x}"


def sentence(text: str) -> str:
    """With a capital letter, but for names such as pi0.5 and from_index, and a full stop."""
    first = text.split(" ")[0]
    head = text[:1].upper() + text[1:] if first.isalpha() and first != "lerobot" else text
    return head if head.endswith((".", ":", "?")) else head + "."


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
