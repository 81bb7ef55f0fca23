"""The cost of pictures on a real recording: decoding and resizing dominate, and small pictures cost less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SIZE = 224


@pytest.mark.lerobot
def test_a_real_recording(offline_home: None, torch_module: Any, real_datasets: Path) -> None:
    pytest.importorskip("lerobot")
    from stack.sweep.pictures import PictureCost, measure_pictures
    from stack.train import lines
    from stack.train.data import open_dataset

    dataset = open_dataset(real_datasets / "ioai_v30_video", 10)
    cameras = dataset.meta.camera_keys

    def collate(samples: list[Any]) -> None:
        for camera in cameras:
            lines.resize(lines.as_unit_floats(samples[0][camera][None]), (SIZE, SIZE))

    cost = measure_pictures(dataset, collate, (SIZE, SIZE))
    assert {*cost.cameras} == {*cameras}
    width, height = map(int, next(iter(cost.cameras.values())).split()[0].split("x"))
    info = dataset.meta.features[cameras[0]]
    assert (height, width) == tuple(info["shape"][:2]) and width > SIZE
    # Reading a sample is decoding all cameras and little else; the parts cannot be more than the whole.
    assert 0.3 * cost.sample_s < cost.decode_s + cost.resize_s < 3 * cost.sample_s
    assert cost.saved_s == pytest.approx(cost.decode_s + cost.resize_s - cost.small_decode_s)
    assert cost.small_decode_s < cost.decode_s + cost.resize_s
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
