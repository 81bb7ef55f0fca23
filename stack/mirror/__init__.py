"""The one door through which models and tokenizers come: fetched, checked against pins, proven."""

from stack.mirror.folder import MirroredModel
from stack.mirror.localising import Localised, localise
from stack.mirror.mirroring import get
from stack.mirror.pinning import Pinned, pin
from stack.mirror.verifying import verify

__all__ = ["Localised", "MirroredModel", "Pinned", "get", "localise", "pin", "verify"]
