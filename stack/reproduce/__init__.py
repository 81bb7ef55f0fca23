"""The stage runner, the verdict, the report."""

from stack.reproduce.chain import Advanced, Reproduced, advance, reproduce
from stack.reproduce.plan import describe

__all__ = ["Advanced", "Reproduced", "advance", "describe", "reproduce"]
