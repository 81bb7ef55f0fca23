"""What is written about a bundle: bundle.json, SHA256SUMS, the verifier, the installer, a page to read.

All of it is a function of the items alone, so that equal bundles are equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.bundle.items import Item
from stack.errors import BadRequest
from stack.files import canonical_json, read_json, sha256_file, sha256_text

SCHEMA = "stack/bundle-content/1"
SUMS = "SHA256SUMS"
SCRIPTS = ("bundle-install.sh", "verify-bundle.py")
OWN_FILES = ("bundle.json", "README.txt", *SCRIPTS)
SCRIPTS_FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "bundle"

README = """This folder is a bundle of stack: {name}, revision {revision}.

It holds {count} items, {size:,} bytes. Nothing in it needs a network.
  python3 verify-bundle.py                  is it whole? (Python 3.6 or later, nothing else)
  python3 verify-bundle.py --unpack DIR     if so, lay its files out under their names
  sha256sum --quiet -c SHA256SUMS           the same check without Python; extra files are not found
{install}
bundle.json names every item and who needs it. The stack itself, with its manual, is checkout.tar among them:
  mkdir STACK && tar -xf DIR/checkout.tar -C STACK
STACK/docs/operations.md says how Ansible brings a site's hosts from these files to a training.
"""
INSTALL = """To work on this machine, without Ansible:
  sh bundle-install.sh --to DIR             verify, lay out, and install stack there from the wheels"""
NO_INSTALL = """bundle-install.sh is for bundles with wheels for one machine to work on. The wheels of this
one ({names}) are for hosts that Ansible installs."""
# What `make setup` installs from, the locks of the lines.
SETUP_LOCKS = frozenset({"production", "current"})


@dataclass(frozen=True)
class Content:
    """Attributes:
    text: bundle.json.
    items: its items, as data.
    carried: sha256 of the objects that lie in this bundle.
    """

    text: str
    items: tuple[Mapping[str, Any], ...]
    carried: frozenset[str]

    @property
    def size_bytes(self) -> int:
        """Bytes of the objects that are carried, equal ones once."""
        return sum({i["sha256"]: i["size"] for i in self.items if i["carried"]}.values())


@dataclass(frozen=True)
class Base:
    """An earlier bundle: the sha256 of its bundle.json, and of all that it and its own base hold."""

    sha256: str
    objects: frozenset[str]


def base_of(folder: Path | None) -> Base | None:
    if folder is None:
        return None
    file = folder / "bundle.json"
    old = read_json(file, what="older bundle's content")
    if not isinstance(old, dict) or old.get("schema") != SCHEMA:
        raise BadRequest("bundle-base-unknown", "the older bundle is none of this format", where=str(file))
    return Base(sha256_file(file), frozenset(item["sha256"] for item in old["items"]))


def content_of(
    name: str,
    revision: str,
    items: Sequence[Item],
    targets: Mapping[str, Mapping[str, str]],
    base: Base | None,
) -> Content:
    held = base.objects if base is not None else frozenset()
    listed = tuple(
        {
            "path": item.path,
            "sha256": item.sha256,
            "size": item.size,
            "needed_by": sorted(item.needed_by),
            "carried": item.sha256 not in held,
        }
        for item in sorted(items, key=lambda item: item.path)
    )
    value = {
        "schema": SCHEMA,
        "name": name,
        "revision": revision,
        "base": None if base is None else base.sha256,
        "targets": dict(targets),
        "items": list(listed),
    }
    carried = frozenset(item.sha256 for item in items if item.sha256 not in held)
    return Content(canonical_json(value), listed, carried)


def own_texts(content: Content) -> dict[str, str]:
    """The files beside `objects/`, by name."""
    texts = {name: (SCRIPTS_FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS}
    value = _parsed(content)
    texts["README.txt"] = README.format(
        name=value["name"],
        revision=value["revision"],
        count=len(content.items),
        size=content.size_bytes,
        install=_install_words(value["targets"]),
    )
    texts["bundle.json"] = content.text
    sums = {f"objects/{sha256[:2]}/{sha256}": sha256 for sha256 in content.carried}
    sums |= {name: sha256_text(text) for name, text in texts.items()}
    texts[SUMS] = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items()))
    return texts


def _install_words(targets: Mapping[str, Mapping[str, str]]) -> str:
    if any(SETUP_LOCKS & set(target["locks"].split()) for target in targets.values()):
        return INSTALL
    return NO_INSTALL.format(names=", ".join(sorted(targets)) or "none")


def _parsed(content: Content) -> dict[str, Any]:
    import json

    return dict(json.loads(content.text))
