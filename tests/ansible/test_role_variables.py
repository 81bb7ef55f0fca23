"""The variables' table follows from the roles, and no default is without a word about it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

CHECKOUT = Path(__file__).parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("role_variables", CHECKOUT / "scripts/role_variables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


variables = script()
ROLES = sorted(path.name for path in (CHECKOUT / "ansible/roles").iterdir() if (path / "tasks").is_dir())


def test_the_page_is_what_the_roles_say() -> None:
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "scripts/role_variables.py"), "--check"], capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("role", ROLES)
def test_every_default_is_specified_and_named_after_its_role(role: str) -> None:
    folder = CHECKOUT / "ansible/roles" / role
    specs = yaml.safe_load((folder / "meta/argument_specs.yml").read_text())["argument_specs"]
    named = {name for spec in specs.values() for name in spec.get("options") or {}}
    assert set(variables.defaults(folder)) <= named
    assert all(name.startswith((f"{role}_", "stack_")) for name in named)


@pytest.mark.parametrize("role", ROLES)
def test_every_option_says_what_it_is(role: str) -> None:
    for name, option in variables.options(CHECKOUT / "ansible/roles" / role).items():
        assert option.get("description"), name
        assert option.get("type"), name


def test_a_row_shows_default_and_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    role = tmp_path / "one"
    (role / "meta").mkdir(parents=True)
    (role / "defaults").mkdir()
    (role / "meta/argument_specs.yml").write_text(
        "argument_specs: {main: {short_description: A role, options: "
        "{one_port: {type: int, description: 'a | b'}, "
        "one_name: {type: str, required: true, description: Its name.}, "
        "one_mounts: {type: list, elements: dict, description: Mounts., options: "
        "{source: {type: path, required: true, description: Where.}, "
        "kind: {type: str, choices: [file, folder], description: What.}}}}}}"
    )
    (role / "defaults/main.yml").write_text("one_port: 80\n")
    monkeypatch.setattr(variables, "ROLES", tmp_path)
    page = variables.page()
    assert "| `one_port` | `80` | a \\| b |\n| `one_name` | **required** | Its name. |" in page
    assert "| `one_mounts[].source` | **required** | Where. |" in page
    assert "| `one_mounts[].kind` | none | What. One of `file`, `folder`. |" in page


@pytest.mark.parametrize("role", ROLES)
def test_a_switch_that_comes_as_text_is_read_as_one(role: str) -> None:
    """`-e teardown_data=false` is the text "false", which an expression takes for true."""
    folder = CHECKOUT / "ansible/roles" / role
    switches = [name for name, o in variables.options(folder).items() if o.get("type") == "bool"]
    for file in sorted(folder.rglob("tasks/*.yml")):
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            code = line.split("#", 1)[0]
            if re.match(r"\s*(do:|error\[)", code) or "fail_msg" in code:
                continue
            for name in switches:
                for use in re.finditer(rf"\b{name}\b", code):
                    rest = code[use.end() :]
                    is_named = re.match(r"\s*(:|,|=|$)", rest) and "when" not in code
                    assert is_named or re.match(r"( \| default\([^)]*\))? \| bool\b", rest), (
                        f"{file}:{number}: {line.strip()}"
                    )
