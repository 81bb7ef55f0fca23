"""From deliveries to one training-ready dataset: select, unify, slice, join."""

from stack.prepare.blueprint import Plan
from stack.prepare.planning import plan
from stack.prepare.run import Prepared, outline, prepare, size_text
from stack.prepare.summary import summary

__all__ = ["Plan", "Prepared", "outline", "plan", "prepare", "size_text", "summary"]
