"""Batch-size search, one process per point."""
