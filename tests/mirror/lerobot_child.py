"""What a training host does with a model's folder, in a process of its own; run by test_offline_load.

python lerobot_child.py save FOLDER TOKENIZER            lerobot's processors of pi0.5, as it stores them
python lerobot_child.py load FOLDER WEIGHTS GOLDEN.json  lerobot's loaders over FOLDER, and our weights' door
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from stack.manifests import load_run_manifest
from stack.train import lines, shim, toy
from stack.train.policy import build_processors, make_config
from stack.train.weights import load_weights

RUN = Path(__file__).resolve().parents[2] / "manifests" / "runs" / "demo-cpu.yaml"


def config(run: Any) -> Any:
    from lerobot.configs.types import FeatureType, PolicyFeature

    made = make_config(run.policy, run.train)
    picture = (3, run.policy.image_size, run.policy.image_size)
    made.input_features = {
        "observation.state": PolicyFeature(FeatureType.STATE, (16,)),
        "observation.images.head": PolicyFeature(FeatureType.VISUAL, picture),
    }
    made.output_features = {"action": PolicyFeature(FeatureType.ACTION, (16,))}
    return made


def save(folder: Path, tokenizer: Path) -> None:
    run = load_run_manifest(RUN).manifest
    modeling = lines.modeling()
    shim.install(modeling)
    made = build_processors(config(run), {}, tokenizer)
    made.before.save_pretrained(folder)
    made.after.save_pretrained(folder)


def load(folder: Path, weights: Path, golden: Path) -> None:
    run = load_run_manifest(RUN).manifest
    modeling = lines.modeling()
    shim.install(modeling)
    toy.install(modeling, run.policy.toy)
    lines.processor()  # registers pi0.5's own steps
    from lerobot.processor import PolicyProcessorPipeline

    pipeline: Any = PolicyProcessorPipeline.from_pretrained(
        folder, config_filename="policy_preprocessor.json"
    )
    step = next(step for step in pipeline.steps if getattr(step, "input_tokenizer", None) is not None)
    for text, ids in json.loads(golden.read_text()):
        assert list(step.input_tokenizer(text)["input_ids"]) == ids, text
    policy = modeling.PI05Policy(config(run))
    proof = load_weights(policy, weights)
    print(json.dumps({"filled": proof.filled_frac, "tokenizer": step.tokenizer_name}))


if __name__ == "__main__":
    {"save": save, "load": load}[sys.argv[1]](*map(Path, sys.argv[2:]))
