"""Golden encodings: right ids pass, and each way in which a tokenizer is silently wrong is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stack.demo.models import write_models
from stack.errors import BadRequest
from stack.manifests import load_models_manifest
from stack.manifests.models import Golden
from stack.mirror.golden import GoldenResult, check, check_without_torch

pytest.importorskip("transformers")
MANIFEST = Path(__file__).resolve().parents[2] / "manifests" / "models.yaml"
GOLDEN = load_models_manifest(MANIFEST).manifest.models["toy-tokenizer"].golden

Check = Callable[[Path, Any], GoldenResult]
both = pytest.mark.parametrize("checked_by", [check, check_without_torch])


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder / "toy-tokenizer"


@both
def test_manifests_golden_holds(checked_by: Check, tokenizer: Path) -> None:
    result = checked_by(tokenizer, GOLDEN)
    assert result.ok and result.checked == len(GOLDEN) == 3


@pytest.mark.lerobot
def test_ids_are_those_that_lerobots_own_step_gives(tokenizer: Path) -> None:
    """The pinned ids, through lerobot's tokenizer step as pi0.5 sets it up (right padding, BOS)."""
    processor = pytest.importorskip("lerobot.processor.tokenizer_processor")
    step = processor.TokenizerProcessorStep(
        tokenizer_name=str(tokenizer), max_length=64, padding_side="right", padding="max_length"
    )
    for item in GOLDEN:
        out = step._tokenize_text([item.text])
        mask = out["attention_mask"][0].bool()
        assert tuple(out["input_ids"][0][mask].tolist()) == item.ids
        assert out["input_ids"][0][~mask].eq(0).all() and mask[0]


@both
def test_first_difference_is_named(checked_by: Check, tokenizer: Path) -> None:
    wrong = list(GOLDEN[1].ids)
    wrong[5] += 1
    result = checked_by(tokenizer, [GOLDEN[0], Golden(text=GOLDEN[1].text, ids=tuple(wrong)), GOLDEN[2]])
    assert not result.ok and result.checked == 2 and result.difference is not None
    assert result.difference.position == 5
    assert result.difference.text == GOLDEN[1].text
    assert f"{wrong[5]}" in str(result.difference) and f"{GOLDEN[1].ids[5]}" in str(result.difference)


@both
def test_cut_encoding_differs_at_its_end(checked_by: Check, tokenizer: Path) -> None:
    result = checked_by(tokenizer, [Golden(text=GOLDEN[0].text, ids=GOLDEN[0].ids[:-2])])
    assert result.difference is not None and result.difference.position == len(GOLDEN[0].ids) - 2


@both
def test_nothing_to_check_is_no_pass(checked_by: Check, tokenizer: Path) -> None:
    assert not checked_by(tokenizer, []).ok


@both
def test_tokenizer_with_other_merges_is_told(checked_by: Check, tokenizer: Path, tmp_path: Path) -> None:
    shutil.copytree(tokenizer, tmp_path / "t")
    content = json.loads((tmp_path / "t" / "tokenizer.json").read_text())
    content["model"]["merges"].pop(0)
    (tmp_path / "t" / "tokenizer.json").write_text(json.dumps(content))
    assert not checked_by(tmp_path / "t", GOLDEN).ok


def test_tokenizer_without_its_main_file_is_told(tokenizer: Path, tmp_path: Path) -> None:
    """transformers 5 loads such a folder and encodes everything to nonsense; 4.53 refuses it."""
    shutil.copytree(tokenizer, tmp_path / "t")
    (tmp_path / "t" / "tokenizer.json").unlink()
    try:
        assert not check(tmp_path / "t", GOLDEN).ok
    except BadRequest as error:
        assert error.id == "tokenizer-not-loaded"
    with pytest.raises(BadRequest, match="no tokenizer could be loaded"):
        check_without_torch(tmp_path / "t", GOLDEN)


@both
def test_folder_that_is_not_there_is_not_taken_for_a_hubs_name(checked_by: Check, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="folder is not there"):
        checked_by(tmp_path / "google" / "paligemma-3b-pt-224", GOLDEN)
