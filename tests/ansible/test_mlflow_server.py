"""Roles mirror, data and mlflow_server: variables are said in words, and no example's secret is of use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ANSIBLE = Path(__file__).parents[2] / "ansible"
ROLES = ("mirror", "data", "mlflow_server")
# Given by other roles, by the inventory for all roles, or in the middle of a role.
FROM_ELSEWHERE = {"stack_bundle"}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("role", ROLES)
def test_every_default_is_an_option_and_every_option_has_a_default_or_must_be_given(role: str) -> None:
    options = read(ANSIBLE / f"roles/{role}/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    defaults = read(ANSIBLE / f"roles/{role}/defaults/main.yml")
    assert set(defaults) - set(options) == set()
    required = {name for name, option in options.items() if option.get("required")}
    assert set(options) - set(defaults) == required
    for name, option in options.items():
        assert option["description"].endswith("."), name
        assert name.startswith(f"{role}_") or name in FROM_ELSEWHERE


def test_the_examples_secrets_are_placeholders_that_the_role_refuses() -> None:
    """The role wants 12 characters and none of the example's word; see tasks/given.yml."""
    vault = read(ANSIBLE / "inventory.example/group_vars/all/vault.yml")
    tracking = read(ANSIBLE / "inventory.example/group_vars/all/tracking.yml")
    options = read(ANSIBLE / "roles/mlflow_server/meta/argument_specs.yml")["argument_specs"]["main"][
        "options"
    ]
    secrets = {name for name in options if name.endswith("_password")}
    assert {f"vault_{name}" for name in secrets} == set(vault)
    for name in secrets:
        assert tracking[name] == "{{ vault_" + name + " }}", "an inventory holds no secret outside its vault"
        assert "REPLACE" in vault[f"vault_{name}"]
    given = read(ANSIBLE / "roles/mlflow_server/tasks/given.yml")
    refused = next(task for task in given if "loop" in task)
    assert set(refused["loop"]) == secrets
    assert any("REPLACE" in text for text in refused["ansible.builtin.assert"]["that"])


def test_no_file_of_the_example_is_hidden_by_a_folder_of_its_name() -> None:
    """Of group_vars/all/ and group_vars/all.yml Ansible reads one, and passes over the other in silence."""
    variables = ANSIBLE / "inventory.example/group_vars"
    folders = {entry.name for entry in variables.iterdir() if entry.is_dir()}
    assert "all" in folders
    assert folders.isdisjoint(entry.stem for entry in variables.iterdir() if entry.is_file())
    known: dict[str, Any] = {}
    for file in sorted((variables / "all").glob("*.yml")):
        known |= read(file)
    assert {"ansible_user", "ansible_ssh_common_args", "stack_bundle", "mlflow_server_names"} <= set(known)


def test_no_task_that_touches_a_secret_is_logged() -> None:
    secret = re.compile(r"mlflow_server_\w+_password(?!_file)|mlflow_server_key_file")
    checked = 0
    for file in sorted((ANSIBLE / "roles/mlflow_server/tasks").glob("*.yml")):
        for task in tasks_of(read(file)):
            body = {key: value for key, value in task.items() if key not in ("when", "name", "block")}
            if file.name != "given.yml" and secret.search(str(body)):
                assert task.get("no_log") is True, f"{file.name}: {task['name']}"
                checked += 1
    assert checked >= 5


def tasks_of(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for task in tasks:
        found += [task, *tasks_of(task.get("block", [])), *tasks_of(task.get("rescue", []))]
    return found
