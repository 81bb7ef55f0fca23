"""Line breaks in templates: Ansible leaves a backslash in a block scalar's string literal as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ANSIBLE = Path(__file__).parents[2] / "ansible"


def block_scalars(text: str) -> Iterator[yaml.ScalarNode]:
    waiting = [node for node in yaml.compose_all(text) if node is not None]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.ScalarNode):
            if node.style in ("|", ">"):
                yield node
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        else:
            waiting += [part for pair in node.value for part in pair]


@pytest.mark.parametrize("folder", sorted(p for p in (ANSIBLE / "roles").iterdir()), ids=lambda p: p.name)
def test_no_block_scalar_spells_a_line_break(folder: Path) -> None:
    """It would be shown as two characters; in double quotes YAML makes the break itself."""
    wrong = [
        f"{file.relative_to(ANSIBLE)}:{node.start_mark.line + 1}"
        for file in sorted(folder.rglob("*.yml"))
        for node in block_scalars(file.read_text())
        if "\\n" in node.value
    ]
    assert wrong == []


def test_it_sees_one() -> None:
    told = ["a: |\n  {{ x | join('\\n') }}\n", "b: [{c: \"{{ x | join('\\n') }}\"}]\n"]
    assert [len(list(block_scalars(text))) for text in told] == [1, 0]
    assert "\\n" in next(block_scalars(told[0])).value
