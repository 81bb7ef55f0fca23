"""lerobot 0.3.4 to 0.4.x pi0.5 on stock transformers 4.53 to 4.57.

That generation of lerobot asks for a patched transformers, whose Gemma has adaptive norms with gated
residuals, no embedding normaliser, a key/value cache that is read and not appended to, and whose PaliGemma
does not rescale picture features. Here the stock modules are built as usual and their trunks are then
converted in place. Parameter names equal the patched library's, so real checkpoints fit.

The adapter steps aside where the patch is present (the production container), and where lerobot brings its
own trunk (0.5 and newer). The mathematics follow openpi's `gemma.py` (adaptive RMSNorm after DiT, arXiv
2212.09748); that both lines give the same loss from the same weights is a test.
"""

from __future__ import annotations

import sys
import types
from functools import lru_cache
from typing import Any, Literal

Trunk = Literal["lerobot", "patched transformers", "adapter"]
_MARK = "_stack_adapter"


def trunk_of(modeling: Any) -> Trunk:
    """Who provides the Gemma trunk for lerobot's `modeling_pi05`."""
    if hasattr(modeling, "PiGemmaForCausalLM"):
        return "lerobot"
    if getattr(modeling, _MARK, False):
        return "adapter"
    from transformers.models.gemma import modeling_gemma

    return "patched transformers" if hasattr(modeling_gemma, "_gated_residual") else "adapter"


def install(modeling: Any) -> Trunk:
    """Make `modeling` (lerobot's `modeling_pi05`) usable here; a second call changes nothing.

    Must come before `toy.install`, which wraps the same two classes.
    """
    trunk = trunk_of(modeling)
    if trunk != "adapter" or getattr(modeling, _MARK, False):
        return trunk
    import transformers.models.siglip as siglip
    from transformers.models.gemma import modeling_gemma

    modeling_gemma._gated_residual = _gated_residual
    # lerobot's constructor asks this module, which only the patch has, whether the patch is there.
    check = types.ModuleType("transformers.models.siglip.check")
    check.check_whether_transformers_replace_is_installed_correctly = lambda: True  # type: ignore[attr-defined]
    sys.modules[check.__name__] = check
    siglip.check = check

    stock_paligemma = modeling.PaliGemmaForConditionalGeneration
    stock_gemma = modeling.GemmaForCausalLM

    def paligemma(config: Any) -> Any:
        return _adapt_paligemma(stock_paligemma(config=config))

    def gemma(config: Any) -> Any:
        model = stock_gemma(config=config)
        _adapt_trunk(model.model)
        return model

    modeling.PaliGemmaForConditionalGeneration = paligemma
    modeling.GemmaForCausalLM = gemma
    setattr(modeling, _MARK, True)
    return "adapter"


def _gated_residual(x: Any, y: Any, gate: Any) -> Any:
    """`x + y`, or `x + y * gate` where the norm before gave a gate; all (B, T, width)."""
    return x + y if gate is None else x + y * gate


def _adapt_paligemma(model: Any) -> Any:
    import torch

    def picture_features(self: Any, pixel_values: Any) -> Any:
        # Stock divides by sqrt(width) here and multiplies by it later in the trunk; pi0.5 does neither.
        return self.multi_modal_projector(self.vision_tower(pixel_values).last_hidden_state)

    def to_encoder_dtype(encoder: Any, args: Any, kwargs: Any) -> Any:
        dtype = encoder.layers[0].self_attn.q_proj.weight.dtype

        def cast(value: Any) -> Any:
            return value.to(dtype) if torch.is_tensor(value) and value.is_floating_point() else value

        return tuple(cast(a) for a in args), {name: cast(value) for name, value in kwargs.items()}

    _adapt_trunk(model.model.language_model)
    model.model.get_image_features = types.MethodType(picture_features, model.model)
    # With bfloat16 lerobot keeps the patch and position embeddings in float32, but not the encoder.
    encoder = model.model.vision_tower.vision_model.encoder
    encoder.register_forward_pre_hook(to_encoder_dtype, with_kwargs=True)
    return model


def _adapt_trunk(trunk: Any) -> None:
    """Swap a stock GemmaModel's norms and forward for pi0.5's, in place."""
    config = trunk.config
    cond_dim = config.adarms_cond_dim if getattr(config, "use_adarms", False) else None
    norm_class = _norm_class()

    def norm() -> Any:
        return norm_class(config.hidden_size, config.rms_norm_eps, cond_dim)

    for layer in trunk.layers:
        layer.input_layernorm, layer.post_attention_layernorm = norm(), norm()
    trunk.norm = norm()
    trunk.__class__ = _trunk_class()


@lru_cache(maxsize=1)
def _norm_class() -> type[Any]:
    import torch
    from torch import nn

    class AdaptiveRMSNorm(nn.Module):  # type: ignore[misc]
        """Gemma's RMSNorm; with `cond_dim`, scale, shift and gate come from a dense layer on the condition.

        forward: x (B, T, dim), cond (B, cond_dim) or None -> (y (B, T, dim), gate (B, 1, dim) or None).
        """

        def __init__(self, dim: int, eps: float, cond_dim: int | None) -> None:
            super().__init__()
            self.eps = eps
            if cond_dim is None:
                self.weight = nn.Parameter(torch.zeros(dim))
                self.dense = None
            else:
                self.dense = nn.Linear(cond_dim, 3 * dim)
                nn.init.zeros_(self.dense.weight)
                nn.init.zeros_(self.dense.bias)

        def forward(self, x: Any, cond: Any = None) -> tuple[Any, Any]:
            normed = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
            if self.dense is None:
                return (normed * (1.0 + self.weight.float())).to(x.dtype), None
            scale, shift, gate = self.dense(cond).unsqueeze(1).chunk(3, dim=-1)
            return (normed * (1.0 + scale.float()) + shift.float()).to(x.dtype), gate.to(x.dtype)

    return AdaptiveRMSNorm


@lru_cache(maxsize=1)
def _trunk_class() -> type[Any]:
    import torch
    from transformers.modeling_outputs import BaseModelOutputWithPast
    from transformers.models.gemma import modeling_gemma

    def attend(
        layer: Any, x: Any, rotary: tuple[Any, Any], mask: Any, past: Any
    ) -> tuple[Any, tuple[Any, Any]]:
        attention = layer.self_attn
        heads = (*x.shape[:-1], -1, attention.head_dim)
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        query, key, value = (project(x).view(heads).transpose(1, 2) for project in projections)
        query, key = modeling_gemma.apply_rotary_pos_emb(query, key, *rotary)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        out, _ = modeling_gemma.eager_attention_forward(attention, query, key, value, mask, attention.scaling)
        return attention.o_proj(out.reshape(*x.shape[:-1], -1)), (key, value)

    class AdaptedGemma(modeling_gemma.GemmaModel):  # type: ignore[misc]
        """A Gemma trunk on ready-made embeddings, without the sqrt(width) normaliser.

        The cache is a list of (key, value) per layer, each (B, kv_heads, T, head_dim); it is read, and a new
        list is returned only where `use_cache` asks for one.
        """

        def forward(
            self,
            input_ids: Any = None,
            attention_mask: Any = None,
            position_ids: Any = None,
            past_key_values: Any = None,
            inputs_embeds: Any = None,
            use_cache: bool | None = None,
            adarms_cond: Any = None,
            **_: Any,
        ) -> Any:
            hidden = inputs_embeds.to(self.layers[0].self_attn.q_proj.weight.dtype)
            rotary = self.rotary_emb(hidden, position_ids)
            cache = []
            for index, layer in enumerate(self.layers):
                past = None if past_key_values is None else past_key_values[index]
                x, gate = layer.input_layernorm(hidden, adarms_cond)
                out, kept = attend(layer, x, rotary, attention_mask, past)
                cache.append(kept)
                hidden = _gated_residual(hidden, out, gate)
                x, gate = layer.post_attention_layernorm(hidden, adarms_cond)
                out = layer.mlp(x.to(layer.mlp.up_proj.weight.dtype))
                hidden = _gated_residual(hidden, out, gate)
            hidden, _gate = self.norm(hidden, adarms_cond)
            return BaseModelOutputWithPast(
                last_hidden_state=hidden, past_key_values=cache if use_cache else None
            )

    return AdaptedGemma
