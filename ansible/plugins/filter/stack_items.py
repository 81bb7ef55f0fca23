"""Items of a bundle by pattern, and what roles/mirror/files/items.py found, in words."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

SHOWN = 10


def items_wanted(content: dict[str, Any], patterns: list[str], strip: str = "") -> list[dict[str, Any]]:
    """`{path, from, size, sha256}` of the items of a bundle.json that a pattern fits, sorted.

    Args:
        patterns: as a shell's, where `*` fits slashes too; one that fits nothing is an error.
        strip: beginning of the items' paths that `path` is without.

    Raises:
        ValueError: a pattern fits nothing, or an item does not begin with `strip`.
    """
    found: dict[str, dict[str, Any]] = {}
    for pattern in patterns:
        fitting = [item for item in content["items"] if fnmatchcase(item["path"], pattern)]
        if not fitting:
            raise ValueError(
                f"error[mirror-no-item] nothing in the bundle '{content.get('name')}' fits '{pattern}'\n"
                "  do: correct the pattern (bundle.json lists the items), or make the bundle with it"
            )
        for item in fitting:
            if not item["path"].startswith(strip):
                raise ValueError(
                    f"error[mirror-strip] '{item['path']}' does not begin with '{strip}'\n"
                    "  do: correct `strip`"
                )
            found[item["path"]] = {
                "path": item["path"][len(strip) :],
                "from": item["path"],
                "size": item["size"],
                "sha256": item["sha256"],
            }
    return [found[path] for path in sorted(found)]


def items_text(answer: dict[str, Any], name: str, where: str) -> str:
    """What is wrong, in the form of all errors; empty where nothing is."""
    unable = str(answer.get("unable", ""))
    if unable:
        kind, _, what = unable.partition(": ")
        do = {
            "disk": "free some space or name a larger disk, then run it again: whole files stay",
            "server": "look at nginx on the inside server and at the way there; run it again, it goes on",
        }.get(kind, "correct it, and run it again")
        return f"error[mirror-{kind}] {name}: {what}\n  do: {do}"
    wrong = answer["wrong"]
    if not wrong:
        return ""
    lines = [f"error[mirror-items] {name}: {len(wrong)} files in {where} are not what they must be:"]
    lines += [f"  - {entry['path']}: {entry['what']}" for entry in wrong[:SHOWN]]
    if len(wrong) > SHOWN:
        lines.append(f"  - and {len(wrong) - SHOWN} more")
    return "\n".join([*lines, "  do: " + _mend(wrong)])


def _mend(wrong: list[dict[str, str]]) -> str:
    if any("not in the list" in entry["what"] for entry in wrong):
        return "move away what does not belong there; nothing of it is deleted for you"
    return "bring these again (verify-bundle.py says whether the bundle is whole), then run the play again"


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"items_wanted": items_wanted, "items_text": items_text}
