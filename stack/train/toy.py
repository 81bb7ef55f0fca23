"""Toy dimensions for lerobot's pi0.5, so that the real code path runs on a laptop's CPU.

No field of `PI05Config` holds the sizes: they are literals in the constructor and in two named variants.
Three names of lerobot's `modeling_pi05` are therefore wrapped; the policy's type and code stay as they are.
"""

from __future__ import annotations

from typing import Any

from stack.errors import BadRequest
from stack.manifests.run import ToyDims
from stack.train.tensors import HEADS

_MARK = "_stack_toy_dims"
_PALIGEMMA = ("PaliGemmaForConditionalGenerationWithPiGemma", "PaliGemmaForConditionalGeneration")
_EXPERT = ("PiGemmaForCausalLM", "GemmaForCausalLM")


def install(modeling: Any, dims: ToyDims | None) -> None:
    """Shrink `modeling` (lerobot's `modeling_pi05`) to `dims` for the rest of this process; None: full size.

    Raises:
        BadRequest: this process has already built a policy of other dimensions.
    """
    present: ToyDims | None = getattr(modeling, _MARK, None)
    if present == dims:
        return
    if present is not None:
        raise BadRequest(
            "toy-dims-differ",
            f"this process has pi0.5 at {_shown(present)}; it cannot also have {_shown(dims)}",
            do="use one process for each",
        )
    assert dims is not None
    setattr(modeling, _MARK, dims)
    _shrink_variants(modeling, dims)
    _shrink_paligemma(modeling, dims)
    _shrink_expert(modeling, dims)


def _shrink_variants(modeling: Any, dims: ToyDims) -> None:
    original = modeling.get_gemma_config

    def toy_variant(variant: str) -> Any:
        config = original(variant)
        is_language = variant == "gemma_2b"
        config.width = dims.width if is_language else dims.expert_width
        config.mlp_dim = dims.mlp_dim if is_language else dims.expert_mlp_dim
        config.depth, config.num_heads = dims.depth, HEADS
        config.num_kv_heads, config.head_dim = dims.num_kv_heads, dims.head_dim
        return config

    modeling.get_gemma_config = toy_variant


def _shrink_paligemma(modeling: Any, dims: ToyDims) -> None:
    name = next(name for name in _PALIGEMMA if hasattr(modeling, name))
    original = getattr(modeling, name)

    def toy_paligemma(config: Any) -> Any:
        vision, text = config.vision_config, config.text_config
        vision.hidden_size, vision.intermediate_size = dims.vision_hidden, dims.vision_mlp_dim
        vision.num_hidden_layers, vision.num_attention_heads = dims.vision_layers, dims.vision_heads
        vision.image_size, vision.patch_size = dims.image_size, dims.patch_size
        vision.projection_dim = config.projection_dim = config.hidden_size = dims.width
        text.vocab_size = config._vocab_size = dims.vocab_size
        text.pad_token_id = 0
        # The picture token stands just past the vocabulary; pi0.5 never looks it up.
        if hasattr(config, "image_token_index"):
            config.image_token_index = dims.vocab_size
        return original(config=config)

    setattr(modeling, name, toy_paligemma)


def _shrink_expert(modeling: Any, dims: ToyDims) -> None:
    name = next(name for name in _EXPERT if hasattr(modeling, name))
    original = getattr(modeling, name)

    def toy_expert(config: Any) -> Any:
        config.vocab_size = dims.vocab_size
        return original(config=config)

    setattr(modeling, name, toy_expert)


def _shown(dims: ToyDims | None) -> str:
    return "full size" if dims is None else f"toy dimensions {dims.model_dump()}"
