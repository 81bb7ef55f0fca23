"""MLflow: a journal in the run folder, a shipper that replays it, a local server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stack.lazy import lazily

if TYPE_CHECKING:
    from stack.tracking.journal import Journal
    from stack.tracking.server import Server, serve
    from stack.tracking.shipping import ShipReport, follow, ship

__all__ = ["Journal", "Server", "ShipReport", "follow", "serve", "ship"]

__getattr__ = lazily(
    __name__,
    {"journal": ("Journal",), "server": ("Server", "serve"), "shipping": ("ShipReport", "follow", "ship")},
)
