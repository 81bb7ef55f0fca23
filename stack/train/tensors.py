"""The tensors of a pi0.5 weights file, computed from the dimensions alone.

Layout of `lerobot/pi05_base`: names without the policy's `model.` prefix; the language model's embedding
is stored once, as `paligemma.lm_head.weight`; the action expert has no embedding, but an output head.
At full size this gives the published file's 812 tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.manifests.run import Policy

HEADS = 8  # lerobot's joint attention reshapes to 8 heads whatever the configuration says
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Dims:
    """All widths that shape a pi0.5 file; defaults: the full size (gemma_2b, gemma_300m, So400m/14)."""

    width: int = 2048
    depth: int = 18
    mlp_dim: int = 16384
    num_kv_heads: int = 1
    head_dim: int = 256
    expert_width: int = 1024
    expert_mlp_dim: int = 4096
    vocab_size: int = 257152
    vision_hidden: int = 1152
    vision_layers: int = 27
    vision_mlp_dim: int = 4304
    image_size: int = 224
    patch_size: int = 14
    max_action_dim: int = 32


def dims_of(policy: Policy) -> Dims:
    if policy.toy is None:
        return Dims(max_action_dim=policy.max_action_dim)
    known = {
        name: getattr(policy.toy, name) for name in Dims.__dataclass_fields__ if hasattr(policy.toy, name)
    }
    return Dims(**known, max_action_dim=policy.max_action_dim)


def expected_tensors(policy: Policy) -> dict[str, Shape]:
    """Name -> shape of every tensor that a whole weights file for `policy` holds, sorted by name."""
    dims = dims_of(policy)
    top = "paligemma_with_expert."
    tensors: dict[str, Shape] = {}
    tensors.update(_vision(f"{top}paligemma.model.vision_tower.vision_model.", dims))
    tensors.update(
        _linear(f"{top}paligemma.model.multi_modal_projector.linear", dims.vision_hidden, dims.width)
    )
    tensors.update(_language(f"{top}paligemma.model.language_model.", dims))
    tensors[f"{top}paligemma.lm_head.weight"] = (dims.vocab_size, dims.width)
    tensors.update(_expert(f"{top}gemma_expert.model.", dims))
    tensors[f"{top}gemma_expert.lm_head.weight"] = (dims.vocab_size, dims.expert_width)
    tensors.update(_linear("action_in_proj", dims.max_action_dim, dims.expert_width))
    tensors.update(_linear("action_out_proj", dims.expert_width, dims.max_action_dim))
    tensors.update(_linear("time_mlp_in", dims.expert_width, dims.expert_width))
    tensors.update(_linear("time_mlp_out", dims.expert_width, dims.expert_width))
    return dict(sorted(tensors.items()))


def _linear(name: str, inputs: int, outputs: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def _norm(name: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _vision(top: str, dims: Dims) -> Iterator[tuple[str, Shape]]:
    hidden = dims.vision_hidden
    yield f"{top}embeddings.patch_embedding.weight", (hidden, 3, dims.patch_size, dims.patch_size)
    yield f"{top}embeddings.patch_embedding.bias", (hidden,)
    yield f"{top}embeddings.position_embedding.weight", ((dims.image_size // dims.patch_size) ** 2, hidden)
    for index in range(dims.vision_layers):
        layer = f"{top}encoder.layers.{index}."
        for norm in ("layer_norm1", "layer_norm2"):
            yield from _norm(layer + norm, hidden)
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _linear(f"{layer}self_attn.{projection}", hidden, hidden)
        yield from _linear(f"{layer}mlp.fc1", hidden, dims.vision_mlp_dim)
        yield from _linear(f"{layer}mlp.fc2", dims.vision_mlp_dim, hidden)
    yield from _norm(f"{top}post_layernorm", hidden)


def _gemma_layer(layer: str, width: int, mlp_dim: int, dims: Dims) -> Iterator[tuple[str, Shape]]:
    queries, keys = HEADS * dims.head_dim, dims.num_kv_heads * dims.head_dim
    yield f"{layer}self_attn.q_proj.weight", (queries, width)
    yield f"{layer}self_attn.k_proj.weight", (keys, width)
    yield f"{layer}self_attn.v_proj.weight", (keys, width)
    yield f"{layer}self_attn.o_proj.weight", (width, queries)
    yield f"{layer}mlp.gate_proj.weight", (mlp_dim, width)
    yield f"{layer}mlp.up_proj.weight", (mlp_dim, width)
    yield f"{layer}mlp.down_proj.weight", (width, mlp_dim)


def _language(top: str, dims: Dims) -> Iterator[tuple[str, Shape]]:
    for index in range(dims.depth):
        layer = f"{top}layers.{index}."
        yield from _gemma_layer(layer, dims.width, dims.mlp_dim, dims)
        yield f"{layer}input_layernorm.weight", (dims.width,)
        yield f"{layer}post_attention_layernorm.weight", (dims.width,)
    yield f"{top}norm.weight", (dims.width,)


def _expert(top: str, dims: Dims) -> Iterator[tuple[str, Shape]]:
    """The expert's norms are adaptive: a dense layer on the time embedding gives scale, shift and gate."""
    width = dims.expert_width
    for index in range(dims.depth):
        layer = f"{top}layers.{index}."
        yield from _gemma_layer(layer, width, dims.expert_mlp_dim, dims)
        yield from _linear(f"{layer}input_layernorm.dense", width, 3 * width)
        yield from _linear(f"{layer}post_attention_layernorm.dense", width, 3 * width)
    yield from _linear(f"{top}norm.dense", width, 3 * width)
