"""Toy models that pass through the same mirror as the real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stack.demo.tokenizer import write_tokenizer
from stack.demo.weights import ACTION_DIM, layout, write_safetensors
from stack.files import whole_folder, write_json, write_text
from stack.manifests.run import ToyDims

TOKENIZER = "toy-tokenizer"
WEIGHTS = "toy-pi05"
DEFAULT_DIMS = ToyDims()

_README = """\
# Toy pi0.5

Random weights for lerobot's `PI05Policy` at toy widths, in the key layout of the published `pi05_base`.
They know nothing: they are a starting point on which a short run on a CPU visibly learns.

`config.json` holds the widths. It is no lerobot policy configuration on purpose: lerobot has no field for
the widths, would build the full 3.6 billion parameters from one, and would load none of these tensors.
"""


def write_models(
    out: Path, *, dims: ToyDims = DEFAULT_DIMS, log: Callable[[str], None] = lambda _: None
) -> None:
    """Write `out/toy-tokenizer/` and `out/toy-pi05/`; the same bytes on every machine.

    Args:
        out: folder to write into; the two folders in it are replaced.
        dims: widths of the toy policy; `manifests/models.yaml` pins the files of the defaults.
        log: takes one line per model.

    Raises:
        NotAble: `out` cannot be written.
    """
    with whole_folder(out / TOKENIZER, replace=True) as folder:
        write_tokenizer(folder)
    log(f"model {TOKENIZER}")
    with whole_folder(out / WEIGHTS, replace=True) as folder:
        write_safetensors(folder / "model.safetensors", dims)
        write_json(
            folder / "config.json",
            {
                "schema": "stack/toy-pi05/1",
                "dtype": "float32",
                "max_action_dim": ACTION_DIM,
                "toy": dims.model_dump(mode="json"),
            },
        )
        write_text(folder / "README.md", _README)
    specs = layout(dims)
    parameters = sum(spec.size for spec in specs)
    log(f"model {WEIGHTS}: {len(specs)} tensors, {parameters:,} parameters")
