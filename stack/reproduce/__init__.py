"""The stage runner, the verdict, the report."""

from stack.reproduce.chain import Reproduced, reproduce
from stack.reproduce.plan import describe

__all__ = ["Reproduced", "describe", "reproduce"]
