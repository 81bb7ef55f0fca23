"""A teardown removes a folder only where the record says that it was looked for before, and was not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = Path(__file__).resolve().parents[2] / "ansible" / "roles"
DEFAULTS = yaml.safe_load((ROLES / "teardown/defaults/main.yml").read_text())
FOLDERS = [*DEFAULTS["teardown_engine_folders"], *DEFAULTS["teardown_server_folders"]]
FOLDERS += DEFAULTS["teardown_data_folders"]
PATHS = yaml.safe_load((ROLES / "host_record/defaults/main.yml").read_text())["host_record_paths"]


def gone(before: dict[str, Any], installed: tuple[str, ...] = ("docker.io", "nginx")) -> list[str]:
    """What the task's own expressions take, with data, an engine and a server that came with us."""
    native = pytest.importorskip("jinja2.nativetypes").NativeEnvironment()
    native.filters["intersect"] = lambda a, b: [one for one in a if one in b]
    native.filters["difference"] = lambda a, b: [one for one in a if one not in b]
    native.filters["bool"] = bool
    native.tests["match"] = lambda text, pattern: re.match(pattern, text) is not None
    tasks = yaml.safe_load((ROLES / "teardown/tasks/main.yml").read_text())
    (task,) = (task for task in tasks if task.get("name") == "Files and folders that came with us")
    given = {**DEFAULTS, "teardown_data": True, "teardown_packages": ["docker.io", "nginx", "postgresql-15"]}
    given["ansible_facts"] = {"packages": dict.fromkeys(installed)}
    (engine,) = (
        task for task in tasks if task.get("name") == "Whether the engine goes, and whether one stays"
    )
    for name, text in engine["ansible.builtin.set_fact"].items():
        given[name] = native.from_string(text).render(**given)
    for name, text in task["vars"].items():
        given[name] = native.from_string(text).render(**given)
    return list(native.from_string(task["loop"]).render(teardown_before=before, **given))


def test_all_folders_that_a_teardown_may_take_are_looked_for_before() -> None:
    assert set(FOLDERS) <= set(PATHS)


def test_folders_that_were_not_there_go_and_others_stay() -> None:
    found = gone({"paths": ["/var/www", "/opt/stack"], "looked_at": PATHS})
    assert set(FOLDERS) - set(found) == {"/var/www", "/opt/stack"}


def test_a_folder_that_nobody_looked_for_stays() -> None:
    found = gone({"paths": [], "looked_at": [path for path in PATHS if path != "/var/www"]})
    assert set(FOLDERS) - set(found) == {"/var/www"}
    assert not set(FOLDERS) & set(gone({"paths": []}))


def test_a_server_that_somebody_else_installed_keeps_its_folders() -> None:
    found = gone({"paths": [], "looked_at": PATHS}, installed=("docker.io", "nginx", "postgresql-16"))
    assert not set(DEFAULTS["teardown_server_folders"]) & set(found)
    assert set(DEFAULTS["teardown_data_folders"]) <= set(found)
