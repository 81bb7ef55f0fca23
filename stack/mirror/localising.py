"""A model's folder that loads without any hub: its processors name a tokenizer that lies beside it.

lerobot's processors of pi0.5 store the tokenizer as a repository's name on a hub, and a load without network
dies on it even where all weights are local. What the mirror holds stays as pinned; the folder made here is a
copy (hard links where the file system can) in which only the tokenizer's name differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import BadRequest
from stack.files import canonical_json, read_json, sha256_text, whole_folder, write_json
from stack.manifests import Loaded, ModelsManifest
from stack.manifests.models import Model
from stack.mirror.folder import mismatch, origin_text, select
from stack.mirror.golden import check_without_torch
from stack.mirror.seen import Seen
from stack.mirror.staging import adopt

PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")
# Keys of lerobot's processor steps that name a tokenizer on a hub (lerobot.processor.tokenizer_processor).
TOKENIZER_KEYS = ("tokenizer_name", "paligemma_tokenizer_name")
TOKENIZER = "tokenizer"
RECORD = "local.json"
RECORD_SCHEMA = "stack/local-model/1"


@dataclass(frozen=True)
class Localised:
    """Attributes:
    replaced: the names that pointed to a hub, each with the processor file that held it.
    is_new: False where the folder was there already, and right.
    """

    folder: Path
    replaced: tuple[tuple[str, str], ...]
    is_new: bool


def localise(
    loaded: Loaded[ModelsManifest],
    mirror: Path,
    model: str,
    tokenizer: str,
    out: Path,
    *,
    log: Callable[[str], None] = lambda _: None,
) -> Localised:
    """Make `out`: the model's files, the tokenizer's in `out/tokenizer`, processors that name that folder.

    The name is an absolute path, because loaders take a relative one for a hub's: move the folder, and run
    this again.

    Raises:
        BadRequest: a name that the manifest does not have, files that are not as pinned, no processor that
            names a tokenizer, a tokenizer without golden texts or with other ids; `out` is another folder.
    """
    models = select(loaded.manifest, [model, tokenizer])
    out = out.absolute()
    for name in (model, tokenizer):
        _require(name, models[name], mirror)
    place = str(out / TOKENIZER)
    edited, replaced = _edited(mirror / model, models[model], place)
    wanted = _record(model, tokenizer, models, edited, replaced)
    if _is_there(out, wanted, models[model], edited):
        log(f"{model}: nothing to do, {out} is right already")
        return Localised(out, replaced, False)
    if out.exists() and not (out / RECORD).is_file() and any(out.iterdir()):
        raise BadRequest(
            "local-place-taken", "the folder holds something else", where=str(out), do="name another --out"
        )
    with whole_folder(out, replace=True) as partial:
        for file in models[model].files:
            if file.path not in edited:
                adopt(mirror / model / file.path, partial / file.path)
        for file in models[tokenizer].files:
            adopt(mirror / tokenizer / file.path, partial / TOKENIZER / file.path)
        for name, text in edited.items():
            (partial / name).write_text(text, encoding="utf-8")
        _prove(partial / TOKENIZER, tokenizer, models[tokenizer])
        write_json(partial / RECORD, wanted)
    log(f"{model}: {out} names the tokenizer {place}")
    return Localised(out, replaced, True)


def _require(name: str, model: Model, mirror: Path) -> None:
    seen = Seen(mirror, name)
    found = (mismatch(mirror / name, file, sha256=seen.sha256(file.path)) for file in model.files)
    wrong = [each for each in found if each is not None]
    if wrong or model.unpinned:
        shown = f"{wrong[0].path} {wrong[0].what}" if wrong else f"{model.unpinned[0]} is not pinned"
        raise BadRequest(
            "local-not-mirrored",
            f"'{name}' is not whole in the mirror: {shown}",
            where=str(mirror / name),
            do=f"stack mirror get MANIFEST --to {mirror} --only {name}",
        )


def _edited(folder: Path, model: Model, place: str) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """The processor files with the tokenizer's place in them, and the names that it took the place of."""
    edited: dict[str, str] = {}
    replaced: list[tuple[str, str]] = []
    for name in PROCESSORS:
        if name not in {file.path for file in model.files}:
            continue
        content = read_json(folder / name, what="processor's configuration")
        names = []
        for step in _configs(content):
            for key in TOKENIZER_KEYS:
                if isinstance(step.get(key), str):
                    names.append((name, step[key]))
                    step[key] = place
        if names:
            replaced += names
            edited[name] = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    if not replaced:
        raise BadRequest(
            "local-no-tokenizer",
            f"no processor of the model names a tokenizer (looked into {', '.join(PROCESSORS)})",
            where=str(folder),
            do="list its processors in the models manifest, or use the mirror's folder as it is",
        )
    return edited, tuple(replaced)


def _configs(content: Any) -> Iterator[dict[str, Any]]:
    steps = content.get("steps", []) if isinstance(content, dict) else []
    for step in steps:
        if isinstance(step, dict) and isinstance(step.get("config"), dict):
            yield step["config"]


def _prove(folder: Path, name: str, model: Model) -> None:
    if not model.golden:
        raise BadRequest(
            "golden-missing",
            f"the models manifest has no golden encoding for '{name}', so it cannot be proven",
            do="add 'golden:' with a text and its ids ('stack mirror pin' prints it)",
        )
    result = check_without_torch(folder, model.golden)
    if not result.ok:
        raise BadRequest("golden-differs", f"the tokenizer '{name}' encodes otherwise: {result.difference}")


def _record(
    model: str,
    tokenizer: str,
    models: dict[str, Model],
    edited: dict[str, str],
    replaced: tuple[tuple[str, str], ...],
) -> dict[str, Any]:
    return {
        "schema": RECORD_SCHEMA,
        "model": {"name": model, "origin": origin_text(models[model].origin)},
        "tokenizer": {"name": tokenizer, "origin": origin_text(models[tokenizer].origin)},
        "files": sha256_text(canonical_json([m.model_dump(mode="json")["files"] for m in models.values()])),
        "edited": {name: sha256_text(text) for name, text in edited.items()},
        "replaced": [list(pair) for pair in replaced],
    }


def _is_there(out: Path, wanted: dict[str, Any], model: Model, edited: dict[str, str]) -> bool:
    try:
        if read_json(out / RECORD, what="folder's record") != wanted:
            return False
    except (BadRequest, OSError):
        return False
    texts = all((out / n).is_file() and (out / n).read_text(encoding="utf-8") == t for n, t in edited.items())
    sizes = all(
        (out / f.path).is_file() and (out / f.path).stat().st_size == f.size
        for f in model.files
        if f.path not in edited
    )
    return texts and sizes
