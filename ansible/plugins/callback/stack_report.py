"""One JSON report of a play for machines (STACK_REPORT=FILE), and one short table for people at its end."""

from __future__ import annotations

import datetime
import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: stack_report
type: aggregate
short_description: a JSON report and a short table of a play
description:
  - Writes hosts, counts and failures to the file named by the environment variable STACK_REPORT.
  - Task arguments and results are not written, only a failure's message; tasks with no_log not even that.
"""


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

    def v2_runner_on_ok(self, result: Any) -> None:
        if result.is_changed():
            self._changes.append({"host": result.host.get_name(), "task": result.task.get_name()})

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            self._fail(result, "failed")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._fail(result, "unreachable")

    def _fail(self, result: Any, kind: str) -> None:
        censored = bool(getattr(result.task, "no_log", False))
        message = "censored: the task handles a secret" if censored else str(result.result.get("msg", ""))
        self._failures.append(
            {"host": result.host.get_name(), "task": result.task.get_name(), "kind": kind, "message": message}
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
            first = failure["message"].splitlines()[0] if failure["message"] else ""
            self._display.display(
                f"{failure['kind']}: {failure['host']}: {failure['task']}: {first}", color="red"
            )
