"""Inside the image build: rewrite compiled modules so that their bytes follow from their source alone.

    python stable_pyc.py FOLDER...

Two things in a .pyc do not, also with a fixed hash seed:
- Which objects are marked as shared depends on how often each is referred to while the file is written
  (marshal from version 3 on). Version 2 has no such marks; every Python reads every version of marshal.
- The order of a frozen set, as in `x in {None, "a"}`, depends before Python 3.11 on the address of None.
The price is half as much again of compiled code, and a fifth more time to import large packages.
Runs in the Python that compiled the files and reads them in the container.
"""

from __future__ import annotations

import marshal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

HEADER_BYTES = 16  # PEP 552: magic number, flags, and 8 bytes of the source's hash
WITHOUT_SHARING = 2  # the newest version of marshal that has no references


def main(folders: list[Path]) -> int:
    count, size_bytes = 0, 0
    for folder in folders:
        for path in sorted(folder.rglob("*.pyc")):
            content = stable(path.read_bytes(), path)
            path.write_bytes(content)
            count, size_bytes = count + 1, size_bytes + len(content)
    print(f"{count} compiled modules, {size_bytes / 1e6:.0f} MB")
    return 0 if count else 3


def stable(content: bytes, path: Path) -> bytes:
    """The same module in the one form that equal code has.

    Raises:
        ValueError: the rewritten code does not read back as the code that was read.
    """
    code = marshal.loads(content[HEADER_BYTES:])
    data = marshal.dumps(code, WITHOUT_SHARING)
    # Without references the bytes of a part do not depend on where it stands.
    for one in frozen_sets(code):
        data = data.replace(marshal.dumps(one, WITHOUT_SHARING), in_order(one))
    if marshal.loads(data) != code:
        raise ValueError(f"{path}: the rewritten code is not the code that was read")
    return content[:HEADER_BYTES] + data


def frozen_sets(value: object) -> Iterator[frozenset[object]]:
    if isinstance(value, frozenset):
        yield value
    elif isinstance(value, CodeType):
        yield from frozen_sets(value.co_consts)
    elif isinstance(value, tuple):
        for part in value:
            yield from frozen_sets(part)


def in_order(one: frozenset[object]) -> bytes:
    """A frozen set as marshal writes it (`>`, the number of members, the members), members by their bytes."""
    members = sorted(marshal.dumps(member, WITHOUT_SHARING) for member in one)
    return b">" + struct.pack("<i", len(members)) + b"".join(members)


if __name__ == "__main__":
    sys.exit(main([Path(word) for word in sys.argv[1:]]))
