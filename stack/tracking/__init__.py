"""MLflow: a journal in the run folder, a shipper that replays it, a local server."""
