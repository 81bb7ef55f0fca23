"""The toy models: the same bytes everywhere, in the published layout, and all of lerobot's tensors filled."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from stack.demo.models import write_models
from stack.demo.tokenizer import build_bpe
from stack.demo.weights import EMBEDDING_STD, layout, tensor_values
from stack.manifests import load_models_manifest
from stack.manifests.run import ToyDims

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ToyDims(
    width=2048,
    depth=18,
    mlp_dim=16384,
    num_kv_heads=1,
    head_dim=256,
    expert_width=1024,
    expert_mlp_dim=4096,
    vocab_size=257152,
    vision_hidden=1152,
    vision_layers=27,
    vision_heads=16,
    vision_mlp_dim=4304,
    image_size=224,
    patch_size=14,
)
EMBED_TOKENS = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
LM_HEAD = "paligemma_with_expert.paligemma.lm_head.weight"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


def test_bytes_are_those_that_the_manifest_pins(models: Path) -> None:
    """Run on both version lines and on all machines, this proves that the bytes are the same everywhere."""
    manifest = load_models_manifest(ROOT / "manifests" / "models.yaml").manifest
    for name in ("toy-pi05", "toy-tokenizer"):
        pinned = {file.path: (file.size, file.sha256) for file in manifest.models[name].files}
        written = {
            path.name: (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
            for path in (models / name).iterdir()
        }
        assert written == pinned


def test_written_again_is_the_same(models: Path, tmp_path: Path) -> None:
    for _ in range(2):
        write_models(tmp_path)
    for path in (p for p in models.rglob("*") if p.is_file()):
        assert (tmp_path / path.relative_to(models)).read_bytes() == path.read_bytes()


def test_layout_at_the_published_sizes_is_the_published_table() -> None:
    """812 tensors and 3,616,757,520 parameters are what the published file's own header counts."""
    specs = layout(PUBLISHED)
    assert len(specs) == 812
    assert sum(spec.size for spec in specs) == 3_616_757_520
    assert EMBED_TOKENS not in {spec.name for spec in specs}


def test_file_reads_as_safetensors(models: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    file = models / "toy-pi05" / "model.safetensors"
    with safetensors.safe_open(file, framework="numpy") as opened:
        assert opened.metadata() == {"format": "pt", EMBED_TOKENS: LM_HEAD}
        for spec in layout(ToyDims()):
            got = opened.get_tensor(spec.name)
            assert got.dtype == np.float32 and got.shape == spec.shape
            np.testing.assert_array_equal(got, tensor_values(spec))


def test_values_are_exact() -> None:
    """One tensor by exact rational arithmetic: SHAKE-256 integers, centred, one rounded product."""
    spec = next(spec for spec in layout(ToyDims()) if spec.name == "action_in_proj.weight")
    stream = hashlib.shake_256(b"stack toy pi05 1\0action_in_proj.weight").digest(4 * 64 * 32)
    half_width = np.float32(math.sqrt(3.0) * math.sqrt(1 / 32))
    got = tensor_values(spec).reshape(-1)
    for index in range(0, 64 * 32, 97):
        bits = int.from_bytes(stream[4 * index : 4 * index + 4], "little") >> 9
        exact = Fraction(2 * bits + 1 - 2**23, 2**23) * Fraction(float(half_width))
        # The nearest float32: no neighbour is nearer to the exact product.
        near = [np.nextafter(got[index], np.float32(side)) for side in (-1, 1)]
        distance = abs(Fraction(float(got[index])) - exact)
        assert all(distance <= abs(Fraction(float(n)) - exact) for n in near)


def test_scales_are_those_of_a_fresh_model() -> None:
    for spec in layout(ToyDims()):
        values = tensor_values(spec).astype(np.float64)
        if spec.init in ("zero", "one"):
            assert (values == (spec.init == "one")).all()
            continue
        std = EMBEDDING_STD if spec.init == "embedding" else 1 / math.sqrt(spec.fan_in)
        assert np.abs(values).max() <= std * math.sqrt(3) * (1 + 1e-6)
        # Uniform values: the sample's deviation scatters by about 0.45/sqrt(n), its mean by 1/sqrt(n).
        assert abs(values.std() / std - 1) < 5 * 0.45 / math.sqrt(values.size)
        assert abs(values.mean() / std) < 5 / math.sqrt(values.size)
    assert len({tensor_values(s).tobytes() for s in layout(ToyDims()) if s.init == "embedding"}) == 2


def test_tokenizer_is_of_gemmas_kind() -> None:
    vocabulary, merges = build_bpe()
    assert [vocabulary[f"<{name}>"] for name in ("pad", "eos", "bos", "unk")] == [0, 1, 2, 3]
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert len(vocabulary) <= ToyDims().vocab_size
    assert all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    assert all({a, b, a + b} <= vocabulary.keys() for a, b in merges)
    assert not [piece for piece in vocabulary if len(piece) > 1 and piece.isdigit()]


def test_weights_are_no_lerobot_checkpoint(models: Path) -> None:
    """lerobot would build the full size from a policy configuration, and load nothing."""
    config = json.loads((models / "toy-pi05" / "config.json").read_text())
    assert "type" not in config
    assert config["toy"] == ToyDims().model_dump()


@pytest.mark.lerobot
def test_file_fills_every_parameter_of_lerobots_policy(models: Path) -> None:
    """Strict, through plain PyTorch, on whichever line this environment has."""
    pytest.importorskip("lerobot")
    code = """
import sys, torch
torch.set_num_threads(1)
from safetensors.torch import load_file
from stack.manifests.run import ToyDims
from stack.train import lines, shim, toy
modeling = lines.modeling()
shim.install(modeling)
toy.install(modeling, ToyDims())
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.pi05.configuration_pi05 import PI05Config
config = PI05Config(
    device="cpu", chunk_size=10, n_action_steps=10, image_resolution=(56, 56), tokenizer_max_length=64,
    input_features={"observation.images.a": PolicyFeature(type=FeatureType.VISUAL, shape=(3, 56, 56)),
                    "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(16,))},
    output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(16,))})
policy = modeling.PI05Policy(config)
with torch.no_grad():
    for parameter in policy.parameters():
        parameter.fill_(float("nan"))
tensors = load_file(sys.argv[1])
head = "paligemma_with_expert.paligemma."
tensors[head + "model.language_model.embed_tokens.weight"] = tensors[head + "lm_head.weight"]
policy.load_state_dict({"model." + name: tensor for name, tensor in tensors.items()}, strict=True)
assert all(parameter.isfinite().all() for parameter in policy.parameters())
print("parameters", sum(parameter.numel() for parameter in policy.parameters()))
"""
    file = models / "toy-pi05" / "model.safetensors"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # The newer line unties embed_tokens from lm_head, and so counts one more vocab x width.
    assert done.stdout.split("parameters ")[-1].strip() in ("351424", str(351_424 + 512 * 64))
