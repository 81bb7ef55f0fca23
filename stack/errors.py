"""The one error type that users see, and the exit codes that it maps to.

Other people's exceptions are wrapped in a `StackError` at the border where they arise. Verifiers do not
raise: they collect `stack.faults.Fault` and report all that they find.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    NOT_GOOD = 1  # done, and what was judged is not good
    BAD_REQUEST = 2  # arguments, manifest, a path that is not there
    NOT_ABLE = 3  # device, driver, server, disk, a missing package
    WORK_FAILED = 4  # crash, non-finite loss, every point out of memory
    OUR_BUG = 70
    INTERRUPTED = 130


class StackError(Exception):
    """Something a user can understand and mend.

    Args:
        id: stable, kebab-case, room first: `manifest-unknown-key`, `prepare-features-differ`.
        what: one sentence that says what is wrong, with both numbers where there are two.
        where: the place: `file:line:column`, a file, episode, feature, host; empty when there is none.
        do: one command or one edit that mends it.
        exit: what the process exits with when nobody handles the error.
    """

    exit: Exit = Exit.BAD_REQUEST

    def __init__(
        self, id: str, what: str, *, where: str = "", do: str = "", exit: Exit | None = None
    ) -> None:
        super().__init__(what)
        self.id = id
        self.what = what
        self.where = where
        self.do = do
        if exit is not None:
            self.exit = exit

    def __str__(self) -> str:
        lines = [f"error[{self.id}]: {self.what}"]
        if self.where:
            lines.append(f"  at: {self.where}")
        if self.do:
            lines.append(f"  do: {self.do}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders in worker pools; the default would drop the keyword arguments.
        return (_rebuild, (type(self), self.id, self.what, self.where, self.do, self.exit))


class BadRequest(StackError):
    """The request is wrong: arguments, manifest, a path that is not there."""

    exit = Exit.BAD_REQUEST


class NotAble(StackError):
    """The environment is not able: device, driver, server, disk, a missing package."""

    exit = Exit.NOT_ABLE


class WorkFailed(StackError):
    """The work ran and failed: a crash, a non-finite loss, every point out of memory."""

    exit = Exit.WORK_FAILED


def _rebuild(cls: type[StackError], id: str, what: str, where: str, do: str, exit: Exit) -> StackError:
    return cls(id, what, where=where, do=do, exit=exit)
