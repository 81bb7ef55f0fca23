"""Imports flow one way, and what is heavy is imported where it is needed."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Each room and what it may import; leaves are open to all.
LEAVES = {"drawing", "errors", "faults", "files", "folders", "lazy", "scratch", "__init__"}
LOWER = {
    "manifests": set(),
    "dataset": set(),
    "devices": {"manifests"},
    "tracking": {"manifests"},
    "demo": {"dataset", "manifests"},
    "mirror": {"manifests"},
    "supply": {"manifests"},
    "bundle": {"manifests", "supply"},
    "audit": {"dataset", "manifests"},
    "prepare": {"dataset", "manifests", "tracking"},
    "train": {"dataset", "devices", "tracking", "mirror", "manifests"},
    "sweep": {"dataset", "devices", "tracking", "mirror", "manifests", "train"},
    "reproduce": {
        "audit", "dataset", "demo", "devices", "manifests", "mirror", "prepare", "sweep", "tracking", "train",
    },
    "cli": {
        "audit", "bundle", "demo", "devices", "manifests", "mirror", "prepare", "reproduce", "supply",
        "sweep", "tracking", "train",
    },
    "__main__": {"cli"},
}  # fmt: skip
HEAVY = {
    "torch",
    "lerobot",
    "transformers",
    "mlflow",
    "modelscope_hub",
    "accelerate",
    "datasets",
    "tokenizers",
}


def modules(checkout: Path) -> list[Path]:
    return sorted((checkout / "stack").rglob("*.py"))


def room_of(file: Path, checkout: Path) -> str:
    return file.relative_to(checkout / "stack").parts[0].removesuffix(".py")


def imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        if node.module == "stack":
            yield from (f"stack.{alias.name}" for alias in node.names)


def test_every_room_imports_only_lower_ones(checkout: Path) -> None:
    uphill = []
    for file in modules(checkout):
        room = room_of(file, checkout)
        allowed = LEAVES if room in LEAVES else LOWER[room] | LEAVES | {room}
        for node in ast.walk(ast.parse(file.read_text())):
            for name in imported(node):
                parts = name.split(".")
                if parts[0] == "stack" and len(parts) > 1 and parts[1] not in allowed | {"__version__"}:
                    uphill.append(f"{file.relative_to(checkout)} imports {name}")
    assert uphill == []


def test_heavy_packages_are_imported_inside_functions(checkout: Path) -> None:
    eager = []
    for file in modules(checkout):
        for node in ast.parse(file.read_text()).body:
            for name in imported(node):
                if name.split(".")[0] in HEAVY:
                    eager.append(f"{file.relative_to(checkout)} imports {name} when it is loaded")
    assert eager == []


@pytest.mark.parametrize(
    "module",
    ["stack.cli", "stack.prepare", "stack.audit", "stack.dataset.read", "stack.reproduce", "stack.demo"],
)
def test_data_commands_load_without_any_heavy_package(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set(m.split('.')[0] for m in sys.modules) & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_only_tracking_imports_mlflow_and_only_mirror_the_hub_client(checkout: Path) -> None:
    allowed = {"mlflow": "tracking", "modelscope_hub": "mirror"}
    strays = [
        f"{file.relative_to(checkout)} imports {name}"
        for file in modules(checkout)
        for node in ast.walk(ast.parse(file.read_text()))
        for name in imported(node)
        if allowed.get(name.split(".")[0], room_of(file, checkout)) != room_of(file, checkout)
    ]
    assert strays == []
