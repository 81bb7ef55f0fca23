"""lerobot's own tools on the same input: convert in place, merge, recompute_stats, delete_episodes.

`augment_dataset_quantile_stats` ends by pushing to a hub; offline, `recompute_stats` computes quantiles.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.measure import Cost, fresh, measure

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
EDIT = "lerobot.scripts.lerobot_edit_dataset"
CONVERT = "lerobot.scripts.convert_dataset_v21_to_v30"


class Rival:
    """Runs lerobot in another Python, with a home of its own."""

    def __init__(self, python: Path, scratch: Path) -> None:
        self._python, self._scratch = python, scratch
        self._env = {
            **OFFLINE,
            "PYTHONPATH": "",
            "HF_HOME": str(scratch / "rival" / "home"),
            "HF_LEROBOT_HOME": str(scratch / "rival" / "home" / "lerobot"),
        }

    def version(self) -> str:
        import subprocess

        code = "import importlib.metadata as m; print(m.version('lerobot'))"
        out = subprocess.run([str(self._python), "-c", code], capture_output=True, text=True, check=True)
        return out.stdout.strip()

    def _run(self, *arguments: str) -> Cost:
        return measure([str(self._python), "-m", *arguments], env=self._env, cwd=self._scratch)

    def compile(self) -> None:
        """Import all that is measured once, which leaves its compiled modules."""
        self._import("lerobot.datasets.lerobot_dataset", EDIT, CONVERT)

    def nothing(self) -> Cost:
        """What the import alone costs."""
        return self._import("lerobot.datasets.lerobot_dataset")

    def _import(self, *modules: str) -> Cost:
        code = f"import {', '.join(modules)}"
        return measure([str(self._python), "-c", code], env=self._env, cwd=self._scratch)

    def convert(self, source: Path, name: str) -> tuple[Path, Cost]:
        """Convert a copy (it works in place); the copying is not counted."""
        root = fresh(self._scratch / "rival" / name)
        fresh(root.with_name(f"{root.name}_old"))
        shutil.copytree(source, root)
        cost = self._run(CONVERT, f"--repo-id=bench/{name}", f"--root={root}", "--push-to-hub=false")
        return root, cost

    def merge(self, sources: Sequence[Path], name: str) -> tuple[Path, Cost]:
        root = fresh(self._scratch / "rival" / name)
        cost = self._run(
            EDIT,
            f"--new_repo_id=bench/{name}",
            f"--new_root={root}",
            "--operation.type=merge",
            f"--operation.repo_ids={[f'bench/{n}-{source.name}' for n, source in enumerate(sources)]}",
            f"--operation.roots={[str(source) for source in sources]}",
        )
        return root, cost

    def quantiles(self, root: Path) -> Cost:
        return self._run(
            EDIT,
            "--repo_id=bench/quantiles",
            f"--root={root}",
            "--operation.type=recompute_stats",
            "--operation.overwrite=true",
        )

    def delete(self, source: Path, episodes: Sequence[int], name: str) -> Cost:
        root = fresh(self._scratch / "rival" / name)
        return self._run(
            EDIT,
            "--repo_id=bench/delete",
            f"--root={source}",
            f"--new_repo_id=bench/{name}",
            f"--new_root={root}",
            "--operation.type=delete_episodes",
            f"--operation.episode_indices={list(episodes)}",
        )
