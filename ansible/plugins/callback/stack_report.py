"""One JSON report of a play for machines (STACK_REPORT=FILE), and one short table for people at its end."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: stack_report
type: aggregate
short_description: a JSON report and a short table of a play
description:
  - Writes hosts, counts and failures to the file named by the environment variable STACK_REPORT.
  - Task arguments and results are not written, only a failure's message and the lines that say why; of tasks
    with no_log not even that.
  - Where a task looks again, the last line that it brought is shown when it is a new one.
"""

SHOWN = 12  # lines of one failure that are repeated at the end
OURS = re.compile(r"^\s*error\[[a-z0-9-]+\]")
# What Ansible says where the reason stands in another field.
HOLLOW = re.compile(r"^(non-zero return code|One or more items failed)$")


def reason(result: dict[str, Any]) -> list[str]:
    """Lines that say why a task failed: our errors with what to do, else the first words."""
    if isinstance(result.get("argument_errors"), list):
        wrong = [str(each) for each in result["argument_errors"]]
        # Ansible gives the bare reason, and then the one with the variable's name, which holds it.
        named = [one for one in wrong if not any(one in other and other != one for other in wrong)]
        return [*named[:SHOWN], "do: docs/role-variables.md says what each variable holds"]
    texts = list(_texts(result))
    ours = [line for text in texts for line in _errors(text)]
    plain = [line for text in texts for line in text.splitlines() if line.strip()]
    lines = (
        list(dict.fromkeys(ours))
        or [line for line in plain if not HOLLOW.match(line.strip())][:2]
        or plain[:1]
    )
    return lines[:SHOWN]


def _texts(result: dict[str, Any]) -> Iterator[str]:
    """What a result says, the nearest words first."""
    items = result.get("results")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and (item.get("failed") or item.get("unreachable")):
            yield from _texts(item)
    yield str(result.get("msg", ""))
    if result.get("rc"):
        lines = [line for line in str(result.get("stderr", "")).splitlines() if line.strip()]
        yield "\n".join(lines if any(OURS.match(line) for line in lines) else lines[-2:])
    for key in ("exception", "reason"):
        if not result.get("msg") and result.get(key):
            yield str(result[key]).strip().splitlines()[-1]


def _errors(text: str) -> Iterator[str]:
    """Lines `error[...]`, and what is indented below each."""
    inside = False
    for line in text.splitlines():
        if OURS.match(line):
            inside = True
            yield line.strip()
        elif inside and line.startswith(" ") and line.strip():
            yield line.rstrip()
        else:
            inside = False


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "stack_report"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._started = datetime.datetime.now(datetime.timezone.utc)
        self._failures: list[dict[str, Any]] = []
        self._changes: list[dict[str, str]] = []
        self._looks: dict[str, str] = {}

    def v2_runner_on_ok(self, result: Any) -> None:
        if result.is_changed():
            self._changes.append({"host": result.host.get_name(), "task": result.task.get_name()})

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            self._fail(result, "failed")

    def v2_runner_retry(self, result: Any) -> None:
        line = str(result.result.get("stderr", "")).strip()
        host = result.host.get_name()
        if result.result.get("rc") == 0 and line and not getattr(result.task, "no_log", False):
            if self._looks.get(host) != line:
                self._display.display(f"  {host}: {line.splitlines()[-1]}")
            self._looks[host] = line

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._fail(result, "unreachable")

    def _fail(self, result: Any, kind: str) -> None:
        censored = bool(getattr(result.task, "no_log", False))
        message = "censored: the task handles a secret" if censored else str(result.result.get("msg", ""))
        self._failures.append(
            {
                "host": result.host.get_name(),
                "task": result.task.get_name(),
                "kind": kind,
                "message": message,
                "reason": [message] if censored else reason(result.result),
            }
        )

    def v2_playbook_on_stats(self, stats: Any) -> None:
        hosts = {host: stats.summarize(host) for host in sorted(stats.processed)}
        seconds = (datetime.datetime.now(datetime.timezone.utc) - self._started).total_seconds()
        if target := os.environ.get("STACK_REPORT"):
            report = {
                "schema": "stack/play-report/1",
                "started": self._started.isoformat(timespec="seconds"),
                "seconds": round(seconds, 1),
                "hosts": hosts,
                "changes": self._changes,
                "failures": self._failures,
                "custom": stats.custom,
            }
            partial = f"{target}.partial"
            with open(partial, "w", encoding="utf-8") as file:
                json.dump(report, file, indent=1, sort_keys=True)
                file.write("\n")
            os.replace(partial, target)
        self._display.display(f"{'host':<20} {'good':>5} {'changed':>8} {'failed':>7}  ({seconds:.0f} s)")
        for host, counts in hosts.items():
            failed = counts["failures"] + counts["unreachable"]
            self._display.display(f"{host:<20} {counts['ok']:>5} {counts['changed']:>8} {failed:>7}")
        for failure in self._failures:
            self._display.display(f"{failure['kind']}: {failure['host']}: {failure['task']}", color="red")
            for line in failure["reason"]:
                self._display.display(f"  {line}", color="red")
