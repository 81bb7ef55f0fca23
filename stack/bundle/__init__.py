"""One verified folder that carries everything to a site without internet."""

from stack.bundle.building import Bundled, bundle
from stack.bundle.verifying import verify_bundle

__all__ = ["Bundled", "bundle", "verify_bundle"]
