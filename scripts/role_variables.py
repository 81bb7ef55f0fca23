"""Write the table of the roles' variables, docs/role-variables.md, from their argument specs and defaults.

role_variables.py            write it
role_variables.py --check    exit code 1 where it is not what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).parents[1]
ROLES = CHECKOUT / "ansible" / "roles"
PAGE = CHECKOUT / "docs" / "role-variables.md"
# In the order in which a site meets them; a role that is not named here comes after these.
ORDER = (
    "site_check",
    "host_record",
    "host_base",
    "ascend_driver",
    "container_runtime",
    "host_time",
    "images",
    "mirror",
    "mlflow_server",
    "data",
    "hccn",
    "train_job",
    "verify",
    "teardown",
)
HEAD = """# Variables of the roles

Written by `python scripts/role_variables.py` from `ansible/roles/*/meta/argument_specs.yml` and
`defaults/main.yml`; a test compares. Set them in the inventory. Where the default is an expression, it is
shown as it is written. Rows with `[]` are the keys that each element of a list has.
"""


def roles() -> list[Path]:
    found = [path for path in ROLES.iterdir() if (path / "meta/argument_specs.yml").exists()]
    rank = {name: number for number, name in enumerate(ORDER)}
    return sorted(found, key=lambda path: (rank.get(path.name, len(rank)), path.name))


def options(role: Path) -> dict[str, dict[str, Any]]:
    """Options of all entry points, the first one's first."""
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]
    found: dict[str, dict[str, Any]] = {}
    for spec in specs.values():
        for name, option in (spec.get("options") or {}).items():
            found.setdefault(name, option)
    return found


def defaults(role: Path) -> dict[str, Any]:
    file = role / "defaults/main.yml"
    return (yaml.safe_load(file.read_text()) or {}) if file.exists() else {}


def cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def shown(name: str, option: dict[str, Any], values: dict[str, Any]) -> str:
    if name not in values:
        return "**required**" if option.get("required") else "none"
    value = values[name]
    if isinstance(value, str):
        text = value
    else:
        text = yaml.safe_dump(value, default_flow_style=True, width=10_000).replace("\n...", "").strip()
    return f"`{cell(text)}`" if text else "empty"


def page() -> str:
    return "\n".join([HEAD.rstrip(), *(line for role in roles() for line in section(role))]) + "\n"


def section(role: Path) -> Iterator[str]:
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]
    values = defaults(role)
    yield from ("", f"## {role.name}", specs["main"]["short_description"] + ".", "")
    yield from ("| variable | default | |", "|---|---|---|")
    for name, option in options(role).items():
        yield row(name, shown(name, option, values), option)
        elements = option.get("options") or {} if option.get("type") == "list" else {}
        for key, each in elements.items():
            yield row(f"{name}[].{key}", "**required**" if each.get("required") else "none", each)


def row(name: str, default: str, option: dict[str, Any]) -> str:
    description = option.get("description", "")
    text = " ".join(description) if isinstance(description, list) else str(description)
    if choices := option.get("choices"):
        text = f"{text} One of {', '.join(f'`{choice}`' for choice in choices)}."
    return f"| `{name}` | {default} | {cell(text)} |"


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        print(
            f"{PAGE.relative_to(CHECKOUT)} is not what the roles say: python scripts/role_variables.py",
            file=sys.stderr,
        )
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
