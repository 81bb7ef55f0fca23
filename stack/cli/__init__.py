"""The command line: parse, call, print. Rooms are imported inside the commands, so that help is instant."""

from __future__ import annotations

import errno
import io
import os
import sys
import tempfile
import traceback
from typing import NoReturn

import click

from stack import __version__
from stack.cli.checks import audit, demo, doctor, mend
from stack.cli.data import convert, drop, merge, prepare, stats
from stack.cli.interrupts import remember_interrupts
from stack.cli.models import mirror
from stack.cli.options import Commands, OwnProcess
from stack.cli.report import report
from stack.cli.runs import reproduce, sweep, train
from stack.cli.supply import image, locks, mirror_sbom, mirror_wheels
from stack.cli.track import track
from stack.errors import BadRequest, Exit, StackError

# What a file system says to a request that is right: no bug of ours, and nothing that a traceback explains.
REFUSED = {
    errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EFBIG, errno.EIO, errno.EISDIR, errno.ELOOP, errno.EMFILE,
    errno.ENAMETOOLONG, errno.ENFILE, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS, errno.ESTALE,
}  # fmt: skip


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="stack")
def cli() -> None:
    """From raw robot recordings to a fine-tuned pi0.5 policy: checked, reproducible, offline.

    Exit codes: 0 good; 1 done, and what was judged is not good; 2 the request is wrong; 3 the environment is
    not able; 4 the work ran and failed; 70 a bug of stack; 130 interrupted.
    """


def main() -> NoReturn:
    """Run the command line and leave with its exit code; a user's mistake never shows a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names that are not UTF-8, as stderr has it
    remember_interrupts()
    try:
        _stand_somewhere()
        code = cli.main(standalone_mode=False, obj=OwnProcess())
        sys.exit(code if isinstance(code, int) else Exit.OK)
    except StackError as error:
        click.echo(str(error), err=True)
        sys.exit(error.exit)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(Exit.BAD_REQUEST)
    except (KeyboardInterrupt, click.Abort) as error:
        # click makes an Abort of an interrupt, and keeps the interrupt as its cause.
        go_on = (
            str(error.__cause__ or error) or f"go on with the same command: stack {' '.join(sys.argv[1:])}"
        )
        click.echo(f"interrupted; {go_on}", err=True)
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        sys.exit(Exit.OK)
    except OSError as error:
        if error.errno not in REFUSED:
            _leave_with_a_bug(error)
        click.echo(f"error[file-refused]: {error.strerror}", err=True)
        click.echo(f"  at: {error.filename or 'a file that was not named'}", err=True)
        click.echo("  do: mend that or name another place, then give the same command again", err=True)
        sys.exit(Exit.NOT_ABLE)
    except Exception as error:
        _leave_with_a_bug(error)


def _stand_somewhere() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:  # such as after `--replace` of it
        raise BadRequest(
            "folder-is-gone",
            "the folder that this command was given in is gone",
            do='`cd "$PWD"` where another one stands in its place now, and give the command again',
        ) from error


def _leave_with_a_bug(error: Exception) -> NoReturn:
    click.echo(f"error[bug]: {type(error).__name__}: {error}", err=True)
    click.echo(f"  this is a fault of stack itself; the traceback is in {_keep_traceback(error)}", err=True)
    sys.exit(Exit.OUR_BUG)


def _keep_traceback(error: Exception) -> str:
    try:
        with tempfile.NamedTemporaryFile("w", prefix="stack-bug-", suffix=".txt", delete=False) as file:
            traceback.print_exception(error, file=file)
    except OSError as refused:
        traceback.print_exception(error)
        return f"the lines above, as no file can be written: {refused}"
    return file.name


for command in (
    doctor, demo, audit, mend, prepare, convert, merge, drop, stats, mirror, sweep, train, reproduce, track,
    image, locks, report,
):  # fmt: skip
    cli.add_command(command)
mirror.add_command(mirror_wheels)
mirror.add_command(mirror_sbom)
