"""MLflow: a journal in the run folder, a shipper that replays it, a local server."""

from stack.tracking.journal import Journal
from stack.tracking.server import Server, serve
from stack.tracking.ship import ShipReport, follow, ship

__all__ = ["Journal", "Server", "ShipReport", "follow", "serve", "ship"]
