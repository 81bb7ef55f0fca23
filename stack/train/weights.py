"""Weights, proven loaded.

lerobot's `from_pretrained` catches every error while loading, prints it, and returns a policy of random
numbers. Here each tensor of the file is followed by name, shape and dtype into the policy, and its values
are compared afterwards; what the file does not fill is an error unless the manifest names it.
"""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import BadRequest, WorkFailed
from stack.files import sha256_file
from stack.train.job import WEIGHTS_FILE

PREFIX = "model."
SHOWN = 8


@dataclass(frozen=True)
class WeightsProof:
    """What was loaded.

    Attributes:
        filled_frac: parameters filled from the file, as a share of all (tied ones counted once).
        tensors: tensors in the file.
        parameters: parameters of the policy.
        random: parameters left at random values, by the manifest's leave.
        tied: names that share the storage of another name.
        unused: tensors of the file that do not fit, by the manifest's leave.
        file_sha256: of the weights file.
        values_sha256: of the loaded values in the policy's own dtypes, equal before and after loading.
        dtype: of the file; several are joined by `+`.
    """

    filled_frac: float
    tensors: int
    parameters: int
    random: tuple[str, ...]
    tied: tuple[str, ...]
    unused: tuple[str, ...]
    file_sha256: str
    values_sha256: str
    dtype: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "random": [*self.random], "tied": [*self.tied], "unused": [*self.unused]}


def load_weights(policy: Any, folder: Path, allowed_random: Sequence[str] = ()) -> WeightsProof:
    """Fill `policy` (a `PI05Policy`) from `folder/model.safetensors`, with proof.

    Args:
        allowed_random: fnmatch patterns over parameter names without the `model.` prefix; a tensor that
            does not fit may stay random where one matches.

    Raises:
        BadRequest: the file is missing, broken, does not fill the policy, or has values that are no numbers;
            a pattern matches nothing.
        WorkFailed: the values in the policy are not those of the file.
    """
    file = folder / WEIGHTS_FILE
    source = _read(file)
    state = policy.state_dict()
    shared = _aliases(state)
    _check_patterns(state, allowed_random, file)
    mapped, dropped = _map_names(policy, source)
    fitting, unfit = _fit(mapped, state)
    filled = {shared[name] for name in fitting}
    open_names = {name for name in state if shared[name] not in filled}
    allowed = {name for name in {*unfit, *open_names} if _matches(name, allowed_random)}
    _refuse(file, sorted(unfit - allowed), sorted(open_names - unfit - allowed), dropped, mapped, state)
    _refuse_odd_values(file, mapped, fitting)
    missing, unexpected = policy.load_state_dict(fitting, strict=False)
    if unexpected or {name for name in missing if shared[name] not in filled} != open_names:
        raise WorkFailed("weights-not-loaded", f"torch reports missing {missing}, unexpected {unexpected}")
    before, after = _digests(fitting, policy.state_dict())
    if before != after:
        raise WorkFailed(
            "weights-differ",
            f"the values in the policy are not the file's: {before} against {after}",
            where=str(file),
        )
    sizes = {shared[name]: tensor.numel() for name, tensor in state.items()}
    return WeightsProof(
        filled_frac=sum(sizes[name] for name in filled) / sum(sizes.values()),
        tensors=len(source),
        parameters=sum(sizes.values()),
        random=tuple(sorted(_short(name) for name in open_names)),
        tied=tuple(sorted(_short(name) for name in state if shared[name] != name)),
        unused=tuple(sorted({mapped[name][0] for name in unfit})),
        file_sha256=sha256_file(file),
        values_sha256=after,
        dtype="+".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in source.values()})),
    )


def _read(file: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not file.is_file():
        raise BadRequest(
            "weights-missing", "there is no weights file", where=str(file), do="run 'stack mirror get'"
        )
    try:
        tensors: dict[str, Any] = load_file(file)
    except (SafetensorError, OSError) as error:
        raise BadRequest(
            "weights-broken",
            f"the weights file ({file.stat().st_size} bytes) is cut short or no safetensors: {error}",
            where=str(file),
            do="run 'stack mirror verify', then 'stack mirror get'",
        ) from error
    return tensors


def _aliases(state: Mapping[str, Any]) -> dict[str, str]:
    """Name -> the first name with the same storage: tied tensors are one."""
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    return {
        name: first.setdefault((tensor.data_ptr(), tuple(tensor.shape)), name)
        for name, tensor in sorted(state.items(), key=lambda item: item[0])
    }


def _map_names(policy: Any, source: Mapping[str, Any]) -> tuple[dict[str, tuple[str, Any]], list[str]]:
    """Policy name -> (file name, tensor) by lerobot's own mapping, one tensor at a time; and what it drops.

    The newer line copies the output head to the embedding too. That copy gives way to an embedding that the
    file has itself, as in a checkpoint where training has moved the two apart.
    """
    mapped: dict[str, tuple[str, Any]] = {}
    copies: dict[str, tuple[str, Any]] = {}
    dropped: list[str] = []
    for name, tensor in source.items():
        targets = policy._fix_pytorch_state_dict_keys({name: tensor}, policy.config)
        if not targets:
            dropped.append(name)
        for target, value in targets.items():
            is_copy = len(targets) > 1 and _short(target) != _short(name)
            (copies if is_copy else mapped)[PREFIX + _short(target)] = (name, value)
    return {**copies, **mapped}, dropped


def _fit(mapped: Mapping[str, tuple[str, Any]], state: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """The tensors that have a place of their shape, and the names that have not."""
    fitting = {
        name: tensor
        for name, (_, tensor) in mapped.items()
        if name in state and state[name].shape == tensor.shape
    }
    return fitting, set(mapped) - set(fitting)


def _refuse(
    file: Path,
    unfit: Sequence[str],
    unfilled: Sequence[str],
    dropped: Sequence[str],
    mapped: Mapping[str, tuple[str, Any]],
    state: Mapping[str, Any],
) -> None:
    problems = []
    for name in unfit:
        shape = tuple(mapped[name][1].shape)
        have = tuple(state[name].shape) if name in state else None
        problems.append(f"{_short(name)}: {shape} in the file, {have or 'no such tensor'} in the policy")
    problems += [f"{_short(name)}: not in the file" for name in unfilled]
    problems += [f"{name}: in the file, but of no use to a pi0.5" for name in dropped]
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise BadRequest(
            "weights-do-not-fit",
            f"{len(problems)} tensors of the weights and the policy do not meet: "
            + "; ".join(problems[:SHOWN])
            + more,
            where=str(file),
            do="take the right weights or dimensions; or, for tensors that shall start at random values, "
            "name them in policy.random_tensors",
        )


def _refuse_odd_values(file: Path, mapped: Mapping[str, tuple[str, Any]], fitting: Mapping[str, Any]) -> None:
    """A sum is finite only where all values are, and takes no memory; an overflow of it is looked at."""
    odd = []
    for name, tensor in fitting.items():
        if not bool(tensor.sum().isfinite()) and (count := int((~tensor.isfinite()).sum())):
            odd.append(f"{mapped[name][0]} ({count} of {tensor.numel()})")
    if odd:
        more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
        raise BadRequest(
            "weights-not-finite",
            f"{len(odd)} tensors of the weights have values that are not finite: "
            f"{', '.join(odd[:SHOWN])}{more}",
            where=str(file),
            do="take the right weights: those of a training that has come to grief are of no use",
        )


def _check_patterns(state: Mapping[str, Any], patterns: Sequence[str], file: Path) -> None:
    names = [_short(name) for name in state]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern.removeprefix(PREFIX)):
            near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.4)
            raise BadRequest(
                "random-tensors-unknown",
                f"policy.random_tensors names '{pattern}', which matches no tensor of the policy",
                where=str(file),
                do=f"nearest: {near[0]}" if near else "leave it out",
            )


def _digests(source: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[str, str]:
    """sha256 over names, shapes, values: of the file's, cast as the policy has them; of the policy's."""
    before, after = hashlib.sha256(), hashlib.sha256()
    for name in sorted(source):
        want = source[name].to(state[name].dtype)
        for digest, tensor in ((before, want), (after, state[name])):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            for piece in _bytes(tensor):
                digest.update(piece)
    return before.hexdigest(), after.hexdigest()


def _bytes(tensor: Any) -> Iterator[memoryview]:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    yield memoryview(flat.view(torch.uint8).numpy())


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(_short(name), pattern.removeprefix(PREFIX)) for pattern in patterns)


def _short(name: str) -> str:
    return name.removeprefix(PREFIX)
