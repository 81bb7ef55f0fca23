"""What the launcher hands to its child, as one JSON file."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from stack.errors import BadRequest, NotAble
from stack.files import read_json, write_json
from stack.manifests.models import Golden, ModelsManifest
from stack.manifests.run import RunManifest
from stack.train.dataset_check import check_metadata

WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True)
class Job:
    """One training or one sweep point; all paths are absolute.

    Attributes:
        weights, tokenizer: folders of the mirror.
        golden: what the tokenizer must give.
        out: the run's folder.
        is_resume: continue from `out/checkpoints/last` where there is one.
    """

    run: RunManifest
    dataset: Path
    weights: Path
    tokenizer: Path
    golden: tuple[Golden, ...]
    out: Path
    is_resume: bool = False

    @property
    def events(self) -> Path:
        """Progress of the child, one JSON object a line."""
        return self.out / "events.jsonl"

    @property
    def outside(self) -> Path:
        """What tried to leave the machine."""
        return self.out / "outside-connections.txt"

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"

    def write(self, file: Path) -> None:
        write_json(
            file,
            {
                "run": self.run.model_dump(mode="json", by_alias=True),
                "dataset": str(self.dataset),
                "weights": str(self.weights),
                "tokenizer": str(self.tokenizer),
                "golden": [golden.model_dump(mode="json") for golden in self.golden],
                "out": str(self.out),
                "is_resume": self.is_resume,
            },
        )

    @staticmethod
    def read(file: Path) -> Job:
        raw = read_json(file, what="job")
        return Job(
            run=RunManifest.model_validate(raw["run"]),
            dataset=Path(raw["dataset"]),
            weights=Path(raw["weights"]),
            tokenizer=Path(raw["tokenizer"]),
            golden=tuple(Golden.model_validate(golden) for golden in raw["golden"]),
            out=Path(raw["out"]),
            is_resume=raw["is_resume"],
        )


def make_out(folder: Path) -> None:
    """Make a folder to work in.

    Raises:
        NotAble: nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise NotAble(
            "folder-not-writable",
            f"nothing can be written here: {error.strerror or error}",
            where=str(folder),
            do="name another folder with --out",
        ) from error


def make_job(
    run: RunManifest,
    *,
    dataset: Path,
    mirror: Path,
    models: ModelsManifest,
    out: Path,
    is_resume: bool = False,
) -> Job:
    """Locate everything that a child needs, and refuse what is not there.

    Raises:
        BadRequest: the dataset, the models' entries or their files are missing.
    """
    info = dataset / "meta" / "info.json"
    if not info.is_file():
        # lerobot's reader would look for the dataset on a hub and leave an empty folder behind.
        raise BadRequest(
            "dataset-missing", "there is no dataset here", where=str(info), do="run 'stack prepare' first"
        )
    check_metadata(dataset)
    policy = run.policy
    for name, kind in ((policy.weights, "weights"), (policy.tokenizer, "tokenizer")):
        entry = models.models.get(name)
        if entry is None or entry.kind != kind:
            known = sorted(n for n, model in models.models.items() if model.kind == kind)
            raise BadRequest(
                "model-unknown",
                f"policy.{kind} is '{name}', which the models manifest does not have as {kind}",
                do=f"name one of {known}",
            )
    needed = {policy.weights: WEIGHTS_FILE, policy.tokenizer: "tokenizer_config.json"}
    for name, file in needed.items():
        if not (mirror / name / file).is_file():
            raise BadRequest(
                "model-missing",
                f"the mirror has no {file} of '{name}'",
                where=str(mirror / name),
                do="run 'stack mirror get'",
            )
    return Job(
        run=run,
        dataset=dataset.absolute(),
        weights=(mirror / policy.weights).absolute(),
        tokenizer=(mirror / policy.tokenizer).absolute(),
        golden=models.models[policy.tokenizer].golden,
        out=out.absolute(),
        is_resume=is_resume,
    )
