"""The last lines of a play: why each task failed, and what to do."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]


class Base:
    """Of ansible.plugins.callback.CallbackBase, what ours uses."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._display = SimpleNamespace(display=lambda text, color=None: self.said.append(text))


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("ansible", "ansible.plugins", "ansible.plugins.callback"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["ansible.plugins.callback"], "CallbackBase", Base, raising=False)
    file = CHECKOUT / "ansible/plugins/callback/stack_report.py"
    spec = importlib.util.spec_from_file_location("stack_report", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OURS = "error[a-b] host1: the cause\n  do: mend it"
LONG = "Elements value for option 'train_job_mounts' is of type str: no dictionary"


@pytest.mark.parametrize(
    ("result", "lines"),
    [
        ({"msg": f"2 problems; nothing was changed.\n{OURS}\nerror[c]: other\n  do: that"},
         [*OURS.splitlines(), "error[c]: other", "  do: that"]),
        ({"msg": "non-zero return code", "rc": 2, "stderr": f"10:00 [1/3] prepare\n{OURS}"},
         OURS.splitlines()),
        ({"msg": "non-zero return code", "rc": 1, "stderr": "a\nb\nno space left on device\n"},
         ["b", "no space left on device"]),
        ({"msg": "One or more items failed",
          "results": [{"failed": False, "msg": "fine"}, {"failed": True, "msg": OURS}]}, OURS.splitlines()),
        ({"msg": "Validation of arguments failed:\n...", "argument_errors": ["no dictionary", LONG]},
         [LONG, "do: docs/role-variables.md says what each variable holds"]),
        ({"msg": f"error[train-ended] exit code 2, on b first\n  do: this\n10:00 step 1\n{OURS}"},
         ["error[train-ended] exit code 2, on b first", "  do: this", *OURS.splitlines()]),
        ({"msg": "Failed to connect via ssh: no route"}, ["Failed to connect via ssh: no route"]),
        ({"msg": ""}, []),
    ],
)  # fmt: skip
def test_the_reason_is_the_lines_that_say_it(
    plugin: ModuleType, result: dict[str, Any], lines: list[str]
) -> None:
    assert plugin.reason(result) == lines


def result_of(host: str, answer: dict[str, Any], no_log: bool = False) -> Any:
    task = SimpleNamespace(get_name=lambda: "role : Task", no_log=no_log)
    return SimpleNamespace(host=SimpleNamespace(get_name=lambda: host), task=task, result=answer)


def test_the_last_lines_of_a_play_tell_the_reason_and_no_secret(plugin: ModuleType) -> None:
    report = plugin.CallbackModule()
    report.v2_runner_on_failed(result_of("host1", {"msg": OURS}))
    report.v2_runner_on_failed(
        result_of("host2", {"msg": "secret", "stderr": "secret", "rc": 1}, no_log=True)
    )
    report.v2_playbook_on_stats(SimpleNamespace(processed={}, custom={}))
    assert report.said[1:] == [
        "failed: host1: role : Task",
        *(f"  {line}" for line in OURS.splitlines()),
        "failed: host2: role : Task",
        "  censored: the task handles a secret",
    ]


def test_a_look_shows_the_last_line_when_it_is_a_new_one(plugin: ModuleType) -> None:
    report = plugin.CallbackModule()
    for line in ("step 1", "step 1", "step 2", ""):
        report.v2_runner_retry(result_of("host1", {"rc": 0, "stderr": f"{line}\n"}))
    report.v2_runner_retry(result_of("host1", {"rc": 1, "stderr": "an error"}))
    assert report.said == ["  host1: step 1", "  host1: step 2"]
