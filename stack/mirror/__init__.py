"""The one door through which models and tokenizers come: fetched, checked against pins, proven."""

from stack.mirror.folder import MirroredModel
from stack.mirror.get import get
from stack.mirror.pin import Pinned, pin
from stack.mirror.verify import verify

__all__ = ["MirroredModel", "Pinned", "get", "pin", "verify"]
