"""Commands without a manifest file: they make one in memory and go the same way."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stack.dataset.model import INDEX_FEATURES
from stack.dataset.read import dataset_version
from stack.dataset.read_meta import read_features, read_info
from stack.errors import BadRequest, StackError
from stack.manifests import DatasetManifest, Loaded
from stack.manifests.dataset import Decisions
from stack.prepare.blueprint import Plan
from stack.prepare.choose import why_not_kept
from stack.prepare.run import Prepared, outline, prepare

Log = Callable[[str], None]
# Stands for a manifest's file in messages; paths are relative to its folder.
COMMAND_LINE = "(the command line)"
# A source's entry in the lines that settle a problem: its path, and the episodes to leave out.
_EXCLUDED = re.compile(r"^  - path: (.+)\n(?:    decide: .*\n)?    exclude_episodes: \[(.+)\]$", re.M)


def request(
    sources: Sequence[Path],
    out: Path,
    *,
    version: str | None = None,
    drop_episodes: str | None = None,
    decide: Sequence[str] = (),
    robot_type: str | None = None,
    camera_statistics: str = "stored",
) -> Loaded[DatasetManifest]:
    """The manifest that `stack convert`, `merge` and `drop` stand for.

    Args:
        version: `v3.0` or `v2.1`; the first source's if not given.
        drop_episodes: such as `3,7-9`, of the one source.
        decide: answers such as `timestamps=restamp`, which hold for every source.
        robot_type: settles sources that disagree.
        camera_statistics: `stored` or `sampled`.

    Raises:
        BadRequest: a source that is no dataset, or an option that is not understood.
    """
    version = version or ("v3.0" if dataset_version(sources[0]) == "v3.0" else "v2.1")
    answers = _answers(decide)
    entries: list[dict[str, Any]] = []
    for path, name in zip(sources, _names(sources), strict=True):
        entry: dict[str, Any] = {"path": str(path), "name": name, "decide": answers}
        if drop_episodes is not None:
            entry["exclude_episodes"] = drop_episodes
        entries.append(entry)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(os.path.realpath(out)).name).lstrip("._-") or "dataset"
    document = {
        "schema": "stack/dataset/1",
        "name": name,
        "version": version,
        "sources": entries,
        "cast": _doubles(sources),
        "robot_type": robot_type,
        "camera_statistics": camera_statistics,
    }
    try:
        manifest = DatasetManifest.model_validate(document)
    except ValidationError as error:
        told = error.errors()[0]
        what = told["msg"].removeprefix("Value error, ")
        key = str(told["loc"][-1]) if told["loc"] else ""
        option = {"exclude_episodes": "--episodes", "version": "--to"}.get(key, key)
        raise BadRequest(
            "request-invalid", f"{option}: {what}", do="see the command's --help for an example"
        ) from error
    return Loaded(manifest, Path.cwd() / COMMAND_LINE, allow_outside=True)


def run(
    loaded: Loaded[DatasetManifest],
    *,
    out: Path,
    videos: str | None,
    jobs: int | None,
    replace: bool,
    log: Log,
    executor: str | None = None,
) -> Prepared:
    """Show the plan, line by line, then do it.

    Args:
        executor: address of a Dask scheduler whose workers do the work.

    Raises:
        StackError: as `prepare`, with the options that would settle it.
    """

    def announce(made: Plan) -> None:
        for line in made.text().rstrip().split("\n"):
            log(line)

    with _Hints(loaded):
        return prepare(
            loaded,
            out=out,
            videos=videos,
            jobs=jobs,
            executor=executor,
            replace=replace,
            log=log,
            announce=announce,
        )


def preview(loaded: Loaded[DatasetManifest], *, videos: str | None, jobs: int | None) -> str:
    """The plan and the output's size, for --dry-run.

    Raises:
        StackError: as `run`.
    """
    with _Hints(loaded):
        return outline(loaded, videos=videos, jobs=jobs)


class _Hints:
    """Says which option does what a message asks of a manifest."""

    def __init__(self, loaded: Loaded[DatasetManifest]) -> None:
        self._file = str(loaded.file)
        self._is_drop = bool(loaded.manifest.sources[0].exclude_episodes)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, StackError):
            return
        options = [
            f"--decide {key}={value}"
            for key, value in (("timestamps", "restamp"), ("missing_cameras", "drop"))
            if re.search(rf"decide: \{{.*\b{key}: {value}\b", error.do)
        ]
        if "robot_type: " in error.do:
            options.append("--robot-type NAME")
        ways = [f"add {' '.join(options)}"] if options else []
        excluded = _EXCLUDED.findall(error.do)
        for number, (path, numbers) in enumerate(excluded, 1):
            smaller = "SMALLER" if len(excluded) == 1 else f"SMALLER-{number}"
            episodes = numbers.replace('"', "").replace(" ", "")
            if self._is_drop:
                ways.append(f"give --episodes {episodes}")
            else:
                drop = f"stack drop {path} {smaller} --episodes {episodes}"
                ways.append(f"leave the episodes out first, with `{drop}`, and take {smaller} in its place")
        do = f"{'; '.join(ways)}; or write a manifest, which can say more:\n{error.do}" if ways else error.do
        what, where = (text.replace(self._file, COMMAND_LINE) for text in (error.what, error.where))
        if (what, where, do) != (error.what, error.where, error.do):
            raise type(error)(error.id, what, where=where, do=do, exit=error.exit) from error


def _answers(decide: Sequence[str]) -> Mapping[str, str]:
    answers: dict[str, str] = {}
    for item in decide:
        key, equals, value = item.partition("=")
        if not equals or key not in Decisions.model_fields:
            known = ", ".join(Decisions.model_fields)
            raise BadRequest(
                "request-decide",
                f"--decide takes KEY=VALUE with a key of {known}, not '{item}'",
                do="for example: --decide timestamps=restamp",
            )
        answers[key] = value
    return answers


def _doubles(sources: Sequence[Path]) -> dict[str, str]:
    """Features that stay float64: without a manifest nobody has said that values may be rounded.

    Fractions only: whole numbers or texts beside them are a question that is asked, not settled here.
    """
    each = [read_features(read_info(source), []) for source in sources]
    shared = set.intersection(*map(set, each)).difference(INDEX_FEATURES)
    return {
        name: "float64"
        for name in each[0]
        if name in shared
        and any(features[name].dtype == "float64" for features in each)
        and all(features[name].dtype.startswith("float") for features in each)
        and all(why_not_kept(features[name]) is None for features in each)
    }


def _names(sources: Sequence[Path]) -> list[str]:
    """Folder names, told apart by a number where they repeat."""
    names: list[str] = []
    for path in sources:
        name, number = Path(os.path.realpath(path)).name, 2
        while name in names:
            name, number = f"{Path(os.path.realpath(path)).name}-{number}", number + 1
        names.append(name)
    return names
