"""Problems are collected and refused together, so that one run shows all that is to be decided."""

from __future__ import annotations

from stack.errors import StackError


class Problems:
    """Refusals found so far."""

    def __init__(self) -> None:
        self._errors: list[StackError] = []

    def add(self, error: StackError) -> None:
        self._errors.append(error)

    def raise_if_any(self) -> None:
        """Raise the first problem, with the others in its text.

        Raises:
            StackError: of the first problem's type, id and exit code.
        """
        if not self._errors:
            return
        first, rest = self._errors[0], self._errors[1:]
        if not rest:
            raise first
        what = first.what
        for error in rest:
            what += f"\n  also[{error.id}]: {error.what}"
            what += f"\n    at: {error.where}" if error.where else ""
        do = "\n".join(dict.fromkeys(error.do for error in self._errors if error.do))
        raise type(first)(first.id, what, where=first.where, do=do, exit=first.exit)
