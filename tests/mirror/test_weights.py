"""`inspect` against files written by the safetensors library, whole and broken."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stack.errors import BadRequest
from stack.mirror.weights import inspect

safetensors = pytest.importorskip("safetensors.numpy")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tensors = {
        "a": np.zeros((3, 4), np.float32),
        "b.c": np.ones(5, np.float16),
        "scalar": np.array(2.0, np.float32),
        "empty": np.zeros((0, 7), np.int64),
    }
    safetensors.save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    return tmp_path / "m.safetensors"


def test_facts(file: Path) -> None:
    facts = inspect(file)
    assert (facts.count, facts.parameters) == (4, 12 + 5 + 1 + 0)
    assert facts.dtypes == {"F32": 13, "F16": 5, "I64": 0}
    assert facts.dtype == "F16+F32+I64"
    assert facts.shapes == {"a": (3, 4), "b.c": (5,), "scalar": (), "empty": (0, 7)}
    assert facts.metadata == {"format": "pt"}


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 40, -1])
def test_cut_anywhere_is_told(file: Path, cut: int) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:cut])
    with pytest.raises(BadRequest) as caught:
        inspect(file)
    assert caught.value.id == "weights-broken" and caught.value.where == str(file)


def test_cut_names_both_sizes(file: Path) -> None:
    content = file.read_bytes()
    data = 13 * 4 + 5 * 2
    file.write_bytes(content[:-10])
    with pytest.raises(BadRequest, match=f"{data} bytes of tensors expected, {data - 10} there"):
        inspect(file)


def test_longer_than_its_header_says(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(BadRequest, match="longer than its header says"):
        inspect(file)


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {"a": 3},
    ],
)
def test_headers_that_lie(tmp_path: Path, header: object) -> None:
    encoded = json.dumps(header).encode()
    file = tmp_path / "m.safetensors"
    file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"\0" * 8)
    with pytest.raises(BadRequest, match="not a whole safetensors file"):
        inspect(file)


@pytest.mark.parametrize(
    "content", [b"<html>log in</html>", b"version https://git-lfs.github.com/spec/v1\n", b""]
)
def test_what_a_hub_sends_instead_of_weights(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(BadRequest, match="not a whole safetensors file"):
        inspect(tmp_path / "m.safetensors")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadRequest) as caught:
        inspect(tmp_path / "none")
    assert caught.value.id == "weights-unreadable"
