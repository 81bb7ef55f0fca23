"""Batch-size search: one process for each point. Importing this room needs no torch."""

from stack.sweep.door import sweep
from stack.sweep.result import Point, SweepResult

__all__ = ["Point", "SweepResult", "sweep"]
