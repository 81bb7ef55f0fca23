"""The cost of pictures on a real recording: decoding and resizing dominate, and small pictures cost less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SIZE = 224


class Samples:
    """Stands for lerobot's reader, which takes only v3.0: a sample is its frame of each camera."""

    def __init__(self, root: Path) -> None:
        from stack.dataset.read import read_dataset
        from stack.train.frames import FrameReader

        self.root, self.reader = root, FrameReader()
        self.described = read_dataset(root)
        self.episode = self.described.episodes[0]

    def __len__(self) -> int:
        return self.episode.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        fps = self.described.fps
        return {
            camera: self.reader(clip.file, [(clip.start + index) / fps], 0.5 / fps)
            for camera, clip in self.episode.clips.items()
        }


@pytest.mark.lerobot
def test_a_real_recording(offline_home: None, torch_module: Any, real_datasets: Path) -> None:
    pytest.importorskip("lerobot")
    from stack.sweep.pictures import PictureCost, measure_pictures
    from stack.train import lines

    dataset = Samples(real_datasets / "cr5_tcp_v21")

    def collate(samples: list[Any]) -> None:
        for picture in samples[0].values():
            lines.resize(lines.as_unit_floats(picture), (SIZE, SIZE))

    cost = measure_pictures(dataset, collate, (SIZE, SIZE))
    assert {*cost.cameras} == {*dataset.described.cameras}
    for camera, stored in cost.cameras.items():
        height, width = dataset.described.features[camera].shape[:2]
        assert stored.startswith(f"{width}x{height} ")
    # Reading a sample is decoding all cameras and little else; the parts are about the whole.
    assert 0.3 * cost.sample_s < cost.decode_s + cost.resize_s < 3 * cost.sample_s
    assert cost.saved_s == pytest.approx(cost.decode_s + cost.resize_s - cost.small_decode_s)
    assert 0 < cost.small_decode_s < cost.decode_s + cost.resize_s
    assert PictureCost.from_json(cost.to_json()) == cost
    assert f"--size {SIZE}' would save" in cost.words()


@pytest.mark.lerobot
def test_pictures_that_are_no_videos(offline_home: None, torch_module: Any, tmp_path: Path) -> None:
    pytest.importorskip("lerobot")
    import types

    from stack.errors import BadRequest
    from stack.sweep import pictures

    described = types.SimpleNamespace(
        cameras=("head",), features={"head": types.SimpleNamespace(is_image=True)}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stack.dataset.read.read_dataset", lambda root: described)
        with pytest.raises(BadRequest, match="not stored as videos"):
            pictures.measure_pictures(types.SimpleNamespace(root=tmp_path), lambda _: None, (SIZE, SIZE))
