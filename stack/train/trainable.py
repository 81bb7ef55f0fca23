"""What of a policy is trained: everything, the action expert, or low-rank adapters. The rest stays."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import BadRequest, WorkFailed
from stack.manifests.run import Lora, RunManifest

VISION = ".paligemma.model.vision_tower."
LANGUAGE_AND_VISION = ".paligemma_with_expert.paligemma."
BASE = ".base_layer"
ADAPTER_MARK = "lora_"
ADAPTER = "default"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class Trainable:
    """Attributes:
    policy: the `PI05Policy`; with adapters, they stand in its layers.
    adapters: peft's model around it, or None.
    named: name -> parameter of all that is trained, tied ones once.
    trained, total: numbers of parameters, adapters included.
    frozen_sha256: over the values of everything that is not trained, when the training began.
    """

    policy: Any
    adapters: Any
    named: Mapping[str, Any]
    trained: int
    total: int
    frozen_sha256: str

    @property
    def parameters(self) -> list[Any]:
        return list(self.named.values())

    @property
    def said(self) -> str:
        rest = "" if self.trained == self.total else f"; {self.total - self.trained:,} are frozen"
        return f"training {self.trained:,} of {self.total:,} parameters{rest}"

    def to_json(self) -> dict[str, Any]:
        return {
            "trained": self.trained,
            "frozen": self.total - self.trained,
            "tensors": len(self.named),
            "frozen_sha256": self.frozen_sha256,
        }

    def prove_frozen(self) -> None:
        """Raises WorkFailed where a tensor that is not trained has changed since the training began."""
        now = frozen_digest(self.policy)
        if now != self.frozen_sha256:
            raise WorkFailed(
                "frozen-weights-moved",
                f"tensors that are not trained have changed: {now} against {self.frozen_sha256} at the start",
            )

    def state_dict(self) -> dict[str, Any]:
        """The policy's tensors by the names of a policy without adapters, which are added to their layers."""
        state = dict(self.policy.state_dict())
        if self.adapters is None:
            return state
        merged = {
            name.replace(BASE, ""): tensor for name, tensor in state.items() if ADAPTER_MARK not in name
        }
        for name, module in self.policy.named_modules():
            if hasattr(module, "get_delta_weight"):
                weight = module.get_base_layer().weight
                delta = module.get_delta_weight(ADAPTER)
                merged[f"{name}.weight"] = (weight.detach() + delta.detach()).to(weight.dtype)
        return merged

    def raw_state(self) -> dict[str, Any]:
        """What is trained, as it is: what a resume needs."""
        return {name: parameter.detach() for name, parameter in self.named.items()}

    def load_raw(self, values: Mapping[str, Any], where: Path) -> None:
        """Raises BadRequest where names or shapes differ."""
        import torch

        if values.keys() != self.named.keys():
            odd = sorted(values.keys() ^ self.named.keys())[:4]
            raise BadRequest(
                "checkpoint-trains-other", f"the checkpoint trains other tensors: {odd}", where=str(where)
            )
        with torch.no_grad():
            for name, parameter in self.named.items():
                if values[name].shape != parameter.shape:
                    have, want = tuple(values[name].shape), tuple(parameter.shape)
                    raise BadRequest(
                        "checkpoint-trains-other",
                        f"{name} is {have} in the checkpoint, and {want} here",
                        where=str(where),
                    )
                parameter.copy_(values[name])


def choose_trainable(policy: Any, run: RunManifest) -> Trainable:
    """Freeze what the manifest freezes, add its adapters, and state what is left to train.

    Raises:
        BadRequest: `lora.targets` matches no layer; or nothing is left to train.
        NotAble: peft is not installed.
    """
    train = run.train
    adapters = None
    if train.lora is not None:
        adapters = _add_adapters(policy, train.lora, run)
    elif train.trains == "expert" or train.freeze_vision:
        mark = LANGUAGE_AND_VISION if train.trains == "expert" else VISION
        for name, parameter in policy.named_parameters():
            if mark in f".{name}":
                parameter.requires_grad_(False)
    named = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    return Trainable(
        policy=policy,
        adapters=adapters,
        named=named,
        trained=sum(p.numel() for p in named.values()),
        total=sum(p.numel() for p in policy.parameters()),
        frozen_sha256=frozen_digest(policy),
    )


def frozen_digest(policy: Any) -> str:
    """sha256 over name, dtype and bytes of every parameter and buffer that is not trained."""
    import torch

    digest = hashlib.sha256()
    trained = {id(p) for p in policy.parameters() if p.requires_grad}
    tensors = {**dict(policy.named_buffers()), **dict(policy.named_parameters())}
    for name, tensor in sorted(tensors.items()):
        if id(tensor) not in trained:
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(memoryview(flat.numpy()))
    return digest.hexdigest()


def _add_adapters(policy: Any, lora: Lora, run: RunManifest) -> Any:
    from stack.train import lines

    peft = lines.adapters()
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    _check_expression(lora.targets)
    if not any(_matches(name, lora.targets) for name, _ in policy.named_modules()):
        raise BadRequest(
            "lora-targets-unknown",
            f"train.lora.targets matches no layer of the policy: {lora.targets}",
            do="name layers as `named_modules` does, such as q_proj, or leave it out for the default",
        )
    config = peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets
    )
    # peft writes this into the adapters' configuration: the model's name, never a folder of this machine.
    policy.name_or_path = run.policy.weights
    # Adapters stay in float32 even where the policy is bfloat16: peft's default, which small updates need.
    model = peft.get_peft_model(policy, config)
    return model


def _check_expression(targets: str | tuple[str, ...]) -> None:
    if not isinstance(targets, str):
        return
    try:
        re.compile(targets)
    except re.error as error:
        raise BadRequest(
            "lora-targets-broken", f"train.lora.targets is no regular expression: {error}: {targets}"
        ) from error


def _matches(name: str, targets: str | tuple[str, ...]) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(name == target or name.endswith(f".{target}") for target in targets)
