"""Which code this is: two processes, or two calls, that write the same bytes have the same digest."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import av
import numpy as np
import pyarrow as pa

from stack.files import sha256_file, sha256_text


@lru_cache(maxsize=1)
def code_digest() -> str:
    """sha256 over this room's sources and the versions of the libraries that write its files."""
    own = "".join(sha256_file(file) for file in sorted(Path(__file__).resolve().parent.glob("*.py")))
    # Each says its own version; `importlib.metadata` would import a reader of mail for it.
    libraries = [f"{library.__name__} {library.__version__}" for library in (pa, av, np)]
    return sha256_text("\n".join((own, *libraries)))
