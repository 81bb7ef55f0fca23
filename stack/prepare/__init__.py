"""From deliveries to one training-ready dataset: select, unify, slice, join."""

from stack.prepare.blueprint import Plan
from stack.prepare.planning import plan
from stack.prepare.run import Prepared, prepare, size_text

__all__ = ["Plan", "Prepared", "plan", "prepare", "size_text"]
