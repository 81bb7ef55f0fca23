"""From an unpinned entry of a models manifest to the lines that pin it.

Pinning is the one moment of trust: the copy that is here now becomes what every later one must equal. The
lines are printed for a person to read and paste, never written into the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stack.errors import StackError, WorkFailed
from stack.files import sha256_file
from stack.manifests import Loaded, ModelsManifest
from stack.manifests.models import Golden, Model, ModelFile, Tensors
from stack.mirror.folder import mismatch, origin_text, select
from stack.mirror.golden import PROBE_TEXTS, encoder_without_torch
from stack.mirror.staging import Log, Source, adopt, locked, stage, staging_folder
from stack.mirror.verifying import SAFETENSORS
from stack.mirror.weights import inspect


@dataclass(frozen=True)
class Pinned:
    """One model with all its pins.

    Attributes:
        files: with size and sha256.
        tensors: counted from the weights; None for tokenizers.
        golden: the manifest's, or for a tokenizer without any the encodings of `PROBE_TEXTS`.
    """

    name: str
    origin: str
    files: tuple[ModelFile, ...]
    tensors: Tensors | None
    golden: tuple[Golden, ...]

    def yaml(self) -> str:
        """The lines to put below `models.NAME` of the manifest."""
        lines = [f"  # {self.name}, pinned from {self.origin}", "    files:"]
        lines += [
            f"      - {{path: {_quoted(f.path)}, size: {f.size}, sha256: {f.sha256}}}" for f in self.files
        ]
        if self.tensors is not None:
            t = self.tensors
            lines.append(f"    tensors: {{count: {t.count}, parameters: {t.parameters}, dtype: {t.dtype}}}")
        if self.golden:
            lines.append("    golden:")
            for item in self.golden:
                lines += [f"      - text: {_quoted(item.text)}", f"        ids: {list(item.ids)}"]
        return "\n".join(lines) + "\n"


def pin(
    loaded: Loaded[ModelsManifest],
    to: Path,
    *,
    names: Sequence[str] | None = None,
    demo: Path | None = None,
    endpoint: str | None = None,
    hosts: Sequence[str] = (),
    log: Log = lambda _: None,
) -> str:
    """The YAML lines that pin what `names` have unpinned; see `pinned_models`, whose text this is."""
    pinned = pinned_models(loaded, to, names=names, demo=demo, endpoint=endpoint, hosts=hosts, log=log)
    return "\n".join(p.yaml() for p in pinned) or "# nothing to pin: every file has its size and sha256\n"


def pinned_models(
    loaded: Loaded[ModelsManifest],
    to: Path,
    *,
    names: Sequence[str] | None = None,
    demo: Path | None = None,
    endpoint: str | None = None,
    hosts: Sequence[str] = (),
    log: Log = lambda _: None,
) -> list[Pinned]:
    """Fetch what is not pinned, and hash it.

    What is pinned already is enforced, and so is what the hub's own listing says. The files stay in the
    staging folder, so that `get` does not fetch them again.

    Args:
        names: models to pin; None: all that have unpinned files.

    Returns:
        the models among `names` that have unpinned files, with all their pins.

    Raises:
        as `get` does, but for unpinned files.
    """
    selected = {n: m for n, m in select(loaded.manifest, names).items() if m.unpinned}
    return [_pin_model(name, model, to, demo, endpoint, hosts, log) for name, model in selected.items()]


def _pin_model(
    name: str, model: Model, to: Path, demo: Path | None, endpoint: str | None, hosts: Sequence[str], log: Log
) -> Pinned:
    with locked(to, name, log):
        source = Source(name, model, staging_folder(to, name), demo=demo, endpoint=endpoint, hosts=hosts)
        _adopt_carried(to / name, source, log)
        stage(source, list(model.files), log)
        files = tuple(_pinned_file(source, file) for file in model.files)
        log(f"{name}: {len(files)} files hashed")
    return Pinned(
        name,
        origin_text(model.origin),
        files,
        _tensors(model, source.staging),
        model.golden or _golden(model, source.staging, log),
    )


def _adopt_carried(folder: Path, source: Source, log: Log) -> None:
    """A copy that was carried here by hand into the model's own place is pinned as it is."""
    for file in source.model.files:
        here, staged = folder / file.path, source.staging / file.path
        if here.is_file() and mismatch(folder, file) is None:
            staged.unlink(missing_ok=True)
            adopt(here, staged)
            source.carried.add(file.path)
            log(f"{source.name}: {file.path} is taken from {folder}; nothing is fetched for it")


def _pinned_file(source: Source, file: ModelFile) -> ModelFile:
    path = source.staging / file.path
    size_bytes, sha256 = path.stat().st_size, sha256_file(path)
    listed = None if file.path in source.carried else source.listed(file.path)
    if listed is not None and (listed.sha256 or sha256, listed.size or size_bytes) != (sha256, size_bytes):
        source.discard(file.path)
        raise WorkFailed(
            "mirror-listing-differs",
            f"{file.path} of '{source.name}' came with {size_bytes} bytes and sha256 {sha256}, but the hub "
            f"lists {listed.size} bytes and sha256 {listed.sha256}; nothing can be pinned from that",
            where=source.hub.endpoint,
            do="try again; if it stays so, compare with the repository's own page, or pin another revision",
        )
    return ModelFile(path=file.path, size=size_bytes, sha256=sha256)


def _tensors(model: Model, folder: Path) -> Tensors | None:
    facts = [inspect(folder / f.path) for f in model.files if f.path.endswith(SAFETENSORS)]
    if not facts:
        return None
    got = Tensors(
        count=sum(f.count for f in facts),
        parameters=sum(f.parameters for f in facts),
        dtype="+".join(sorted({name for f in facts for name in f.dtypes})),
    )
    if model.tensors is not None and got != model.tensors:
        raise WorkFailed(
            "mirror-tensors-differ",
            f"the manifest expects {model.tensors.count} tensors, {model.tensors.parameters:,} parameters, "
            f"{model.tensors.dtype}; the file holds {got.count}, {got.parameters:,}, {got.dtype}",
            where=origin_text(model.origin),
            do="pin another revision, or correct 'tensors' in the manifest",
        )
    return got


def _golden(model: Model, folder: Path, log: Log) -> tuple[Golden, ...]:
    if model.kind != "tokenizer":
        return ()
    try:
        encode = encoder_without_torch(folder)
    except StackError as error:
        log(f"no golden encodings: {error.what}")
        return ()
    return tuple(Golden(text=text, ids=tuple(encode(text))) for text in PROBE_TEXTS)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # JSON's strings are YAML's double-quoted ones
