"""YAML read strictly: YAML 1.2 core scalars, no duplicate keys, and the position of every value.

PyYAML's own loader keeps the last of two equal keys and reads `no` as false, `12:30` as 750 and `1e5` as
text. A manifest is evidence, so none of that may happen silently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from stack.errors import BadRequest

Keys = tuple[str | int, ...]

_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_INT = re.compile(r"^[-+]?[0-9]+$")
_HEX = re.compile(r"^0x[0-9a-fA-F]+$")
_FLOAT = re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")


@dataclass(frozen=True)
class Document:
    """Parsed YAML: plain Python data, and `file:line:column` for each path of keys in it."""

    data: Any
    source: str
    positions: dict[Keys, str]

    def where(self, keys: Keys) -> str:
        """The position of `keys`, or of the nearest enclosing value that has one."""
        for length in range(len(keys), -1, -1):
            if (position := self.positions.get(keys[:length])) is not None:
                return position
        return self.source


def parse(text: str, source: str) -> Document:
    """Parse one YAML document.

    Args:
        text: the YAML.
        source: the file's name, for messages.

    Raises:
        BadRequest: not YAML, a duplicate key, a key that is no string, a tag beyond the core ones.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        problem = getattr(error, "problem", None) or str(error)
        raise BadRequest("manifest-not-yaml", f"not YAML: {problem}", where=where) from error
    positions: dict[Keys, str] = {}
    data = None if node is None else _construct(node, (), source, positions)
    return Document(data, source, positions)


def parse_scalar(text: str) -> Any:
    """The value of one plain scalar or flow collection, as `--set key=VALUE` gives it."""
    return parse(text, "--set").data


def _construct(node: yaml.Node, keys: Keys, source: str, positions: dict[Keys, str]) -> Any:
    position = f"{source}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
    positions.setdefault(keys, position)
    if isinstance(node, yaml.MappingNode):
        return _construct_mapping(node, keys, source, positions)
    if isinstance(node, yaml.SequenceNode):
        return [_construct(item, (*keys, i), source, positions) for i, item in enumerate(node.value)]
    if node.tag not in _PLAIN_TAGS:
        raise BadRequest("manifest-yaml-tag", f"the YAML tag {node.tag} is not allowed", where=position)
    assert isinstance(node, yaml.ScalarNode)
    return node.value if node.style is not None else _plain(node.value)


def _construct_mapping(
    node: yaml.MappingNode, keys: Keys, source: str, positions: dict[Keys, str]
) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        position = f"{source}:{key_node.start_mark.line + 1}:{key_node.start_mark.column + 1}"
        key = key_node.value
        if not isinstance(key, str):
            raise BadRequest("manifest-key-not-text", "a key must be text", where=position)
        path: Keys = (*keys, key)
        if key in mapping:
            first = positions[path]
            raise BadRequest(
                "manifest-duplicate-key",
                f"the key '{key}' is given twice (first at {first}); one of them would be lost",
                where=position,
                do="keep one of the two",
            )
        positions[path] = position
        mapping[key] = _construct(value_node, path, source, positions)
    return mapping


_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp")}


def _plain(text: str) -> Any:
    if _NULL.match(text):
        return None
    if _BOOL.match(text):
        return text.lower() == "true"
    if _INT.match(text):
        return int(text)
    if _HEX.match(text):
        return int(text, 16)
    if _FLOAT.match(text):
        return float(text)
    return text
