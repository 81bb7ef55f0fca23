"""Toy pi0.5 weights in the key layout of the published `pi05_base` file.

The bytes are the same on every machine: values come from SHAKE-256 (FIPS 202) as integers, and are scaled
by one correctly rounded float32 multiplication; the file is written here, by the safetensors format
(https://github.com/huggingface/safetensors#format), not by a library whose layout might change.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from stack.manifests.run import ToyDims

ATTENTION_HEADS = 8  # fixed by lerobot's attention in both towers
ACTION_DIM = 32  # lerobot's max_action_dim, and that of the published heads
IMAGE_CHANNELS = 3
SEED = b"stack toy pi05 1"
TIED = {  # the published file names the left-out tensor and its twin in the header's metadata
    "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight": (
        "paligemma_with_expert.paligemma.lm_head.weight"
    )
}
EMBEDDING_STD = 0.02  # transformers' initializer_range for the Gemma and SigLIP parts

_HEADER_ALIGNMENT_BYTES = 8
_FLOAT32_BYTES = 4

Init = Literal["zero", "one", "linear", "embedding"]


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the weights file.

    Attributes:
        name: as in the published file, without lerobot's leading `model.`.
        shape: as PyTorch has it, output before input.
        init: how its values are made.
        fan_in: inputs of one output unit; used by `linear` only.
    """

    name: str
    shape: tuple[int, ...]
    init: Init
    fan_in: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def layout(dims: ToyDims) -> list[TensorSpec]:
    """All tensors of a weights file for `dims`, sorted by name.

    `embed_tokens` of the language model is left out as in the published file: it is `lm_head` (see `TIED`).
    At the published sizes this is the published file's table: 812 tensors, 3,616,757,520 parameters.
    """
    paligemma, expert = "paligemma_with_expert.paligemma", "paligemma_with_expert.gemma_expert"
    width, expert_width = dims.width, dims.expert_width
    specs = [
        TensorSpec(f"{paligemma}.lm_head.weight", (dims.vocab_size, width), "embedding"),
        TensorSpec(f"{expert}.lm_head.weight", (dims.vocab_size, expert_width), "embedding"),
        *_linear(f"{paligemma}.model.multi_modal_projector.linear", dims.vision_hidden, width),
        *_vision(f"{paligemma}.model.vision_tower.vision_model", dims),
        TensorSpec(f"{paligemma}.model.language_model.norm.weight", (width,), "zero"),
        *_adaptive_norm(f"{expert}.model.norm", expert_width),
        *_linear("action_in_proj", ACTION_DIM, expert_width),
        *_linear("action_out_proj", expert_width, ACTION_DIM),
        *_linear("time_mlp_in", expert_width, expert_width),
        *_linear("time_mlp_out", expert_width, expert_width),
    ]
    for index in range(dims.depth):
        trunk = f"{paligemma}.model.language_model.layers.{index}"
        specs += _gemma_layer(trunk, width, dims.mlp_dim, dims)
        specs += [
            TensorSpec(f"{trunk}.{norm}.weight", (width,), "zero")
            for norm in ("input_layernorm", "post_attention_layernorm")
        ]
        trunk = f"{expert}.model.layers.{index}"
        specs += _gemma_layer(trunk, expert_width, dims.expert_mlp_dim, dims)
        specs += _adaptive_norm(f"{trunk}.input_layernorm", expert_width)
        specs += _adaptive_norm(f"{trunk}.post_attention_layernorm", expert_width)
    return sorted(specs, key=lambda spec: spec.name)


def _linear(name: str, fan_in: int, fan_out: int, *, bias: bool = True) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (fan_out, fan_in), "linear", fan_in)
    if bias:
        yield TensorSpec(f"{name}.bias", (fan_out,), "zero")


def _adaptive_norm(name: str, width: int) -> Iterator[TensorSpec]:
    # Scale, shift and gate. Zero weights and drawn biases are what lerobot starts from: with zero biases all
    # gates would be shut, and the expert's attention would get no gradient at first.
    yield TensorSpec(f"{name}.dense.weight", (3 * width, width), "zero")
    yield TensorSpec(f"{name}.dense.bias", (3 * width,), "linear", width)


def _gemma_layer(name: str, width: int, mlp_dim: int, dims: ToyDims) -> Iterator[TensorSpec]:
    queries, keys = ATTENTION_HEADS * dims.head_dim, dims.num_kv_heads * dims.head_dim
    yield from _linear(f"{name}.self_attn.q_proj", width, queries, bias=False)
    yield from _linear(f"{name}.self_attn.k_proj", width, keys, bias=False)
    yield from _linear(f"{name}.self_attn.v_proj", width, keys, bias=False)
    yield from _linear(f"{name}.self_attn.o_proj", queries, width, bias=False)
    yield from _linear(f"{name}.mlp.gate_proj", width, mlp_dim, bias=False)
    yield from _linear(f"{name}.mlp.up_proj", width, mlp_dim, bias=False)
    yield from _linear(f"{name}.mlp.down_proj", mlp_dim, width, bias=False)


def _vision(name: str, dims: ToyDims) -> Iterator[TensorSpec]:
    hidden, patch = dims.vision_hidden, dims.patch_size
    patches = (dims.image_size // patch) ** 2
    embeddings = f"{name}.embeddings"
    fan_in = IMAGE_CHANNELS * patch * patch
    shape = (hidden, IMAGE_CHANNELS, patch, patch)
    yield TensorSpec(f"{embeddings}.patch_embedding.weight", shape, "linear", fan_in)
    yield TensorSpec(f"{embeddings}.patch_embedding.bias", (hidden,), "zero")
    yield TensorSpec(f"{embeddings}.position_embedding.weight", (patches, hidden), "linear", hidden)
    for index in range(dims.vision_layers):
        layer = f"{name}.encoder.layers.{index}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _linear(f"{layer}.self_attn.{part}", hidden, hidden)
        yield from _linear(f"{layer}.mlp.fc1", hidden, dims.vision_mlp_dim)
        yield from _linear(f"{layer}.mlp.fc2", dims.vision_mlp_dim, hidden)
        yield from _layer_norm(f"{layer}.layer_norm1", hidden)
        yield from _layer_norm(f"{layer}.layer_norm2", hidden)
    yield from _layer_norm(f"{name}.post_layernorm", hidden)


def _layer_norm(name: str, width: int) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (width,), "one")
    yield TensorSpec(f"{name}.bias", (width,), "zero")


def tensor_values(spec: TensorSpec) -> npt.NDArray[np.float32]:
    """float32 values of `spec`, in its shape.

    Uniform with standard deviation 1/sqrt(fan_in) for linear layers and `EMBEDDING_STD` for embeddings.
    """
    if spec.init == "zero":
        return np.zeros(spec.shape, dtype=np.float32)
    if spec.init == "one":
        return np.ones(spec.shape, dtype=np.float32)
    std = EMBEDDING_STD if spec.init == "embedding" else math.sqrt(1.0 / spec.fan_in)
    half_width = np.float32(math.sqrt(3.0) * std)
    values: npt.NDArray[np.float32] = _centred_uniform(spec.name, spec.size) * half_width
    return values.reshape(spec.shape)


def _centred_uniform(name: str, count: int) -> npt.NDArray[np.float32]:
    """`count` float32 values in (-1, 1), symmetric about 0, exact: odd multiples of 2**-23."""
    raw = hashlib.shake_256(SEED + b"\0" + name.encode()).digest(_FLOAT32_BYTES * count)
    integers = (np.frombuffer(raw, dtype="<u4") >> 9).astype(np.int32)  # 23 bits
    return (2 * integers + 1 - (1 << 23)).astype(np.float32) * np.float32(2.0**-23)


def write_safetensors(path: Path, dims: ToyDims) -> None:
    """Write the weights of `dims` as float32 safetensors: header sorted by name, data in that order."""
    specs = layout(dims)
    header: dict[str, object] = {"__metadata__": {"format": "pt", **TIED}}
    offset = 0
    for spec in specs:
        end = offset + _FLOAT32_BYTES * spec.size
        header[spec.name] = {"dtype": "F32", "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    encoded += b" " * (-len(encoded) % _HEADER_ALIGNMENT_BYTES)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for spec in specs:
            file.write(tensor_values(spec).astype("<f4").tobytes())
