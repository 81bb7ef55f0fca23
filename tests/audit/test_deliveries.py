"""The demo's deliveries, what prepare makes of them, and real recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack.audit import AuditReport, PolicyNeeds, audit
from stack.demo.faults import PLANTED, PlantedFault
from stack.faults import Fault

# The demo's list names two faults by what they are between deliveries or in general.
SAME = {
    ("feature-fps-entry-differs", None): "feature-fps-entry",
    ("state-too-wide", "action"): "action-too-wide",
}


def code_of(planted: PlantedFault) -> str:
    return SAME.get((planted.code, planted.feature), planted.code)


@pytest.fixture(scope="module")
def of_deliveries(deliveries: Path) -> dict[str, AuditReport]:
    needs = PolicyNeeds(action_horizon=10)
    return {folder.name: audit(folder, policy=needs) for folder in sorted(deliveries.iterdir())}


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: f"{p.code}-{p.delivery}-{p.feature}")
def test_each_planted_fault_is_found_at_its_place(
    planted: PlantedFault, of_deliveries: dict[str, AuditReport]
) -> None:
    reports = [r for name, r in of_deliveries.items() if planted.delivery in (None, name)]
    faults = [fault for report in reports for fault in report.of(code_of(planted))]
    places = [place for fault in faults for place in (*fault.places, fault.where)]
    assert any(
        (planted.feature is None or place.feature == planted.feature)
        and (planted.episode is None or place.episode == planted.episode)
        for place in places
    ), places


@pytest.mark.parametrize("delivery", ["demo_task", "demo_task-1"])
def test_nothing_else_is_an_error(delivery: str, of_deliveries: dict[str, AuditReport]) -> None:
    planted = {code_of(p) for p in PLANTED if p.delivery in (None, delivery)}
    errors = {fault.code for fault in of_deliveries[delivery].faults if fault.severity == "error"}
    assert errors <= planted
    found = {fault.code for fault in of_deliveries[delivery].faults}
    # Between the deliveries: only the second one has fps entries.
    assert ("feature-fps-entry" in found) == (delivery == "demo_task-1")
    assert ("stats-count-zero" in found) == (delivery == "demo_task")
    assert ("rows-not-finite" in found) == (delivery == "demo_task")


def of_real(folder: Path, name: str, policy: PolicyNeeds | None = None) -> AuditReport:
    root = folder / name
    if not root.is_dir():
        pytest.skip(f"{name} is not there")
    return audit(root, policy=policy)


def errors(report: AuditReport) -> list[str]:
    return [fault.code for fault in report.faults if fault.severity == "error"]


def one(report: AuditReport, code: str, feature: str | None = None) -> Fault:
    (fault,) = [f for f in report.of(code) if feature in (None, f.where.feature)]
    return fault


def test_no_real_take_is_called_a_copy(real_datasets: Path) -> None:
    for name in ("cr5_tcp_v21", "g1_inspire_v21", "gr00t_picknplace_v20"):
        assert not of_real(real_datasets, name).of("episode-duplicate"), name


def test_cr5_has_wall_clock_timestamps_and_nothing_else(real_datasets: Path) -> None:
    report = of_real(real_datasets, "cr5_tcp_v21")
    assert errors(report) == ["timestamps-off"]
    fault = one(report, "timestamps-off")
    assert fault.count == 1840
    assert fault.data["worst_s"] > 1  # drift of seconds, as its README says


def test_g1_is_clean_but_for_nested_names(real_datasets: Path) -> None:
    report = of_real(real_datasets, "g1_inspire_v21", PolicyNeeds())
    assert errors(report) == []
    assert {f.where.feature for f in report.of("names-do-not-fit")} == {"observation.state", "action"}
    assert {f.severity for f in report.of("names-do-not-fit")} == {"note"}


def test_gr00t_is_told_what_its_readme_lists(real_datasets: Path) -> None:
    report = of_real(real_datasets, "gr00t_picknplace_v20", PolicyNeeds())
    wide = {"state-too-wide", "action-too-wide"}
    assert set(errors(report)) - wide == {
        "camera-without-files",
        "template-does-not-resolve",
        "timestamps-off",
    }
    assert one(report, "camera-without-files").where.feature == "observation.images.egoview"
    assert one(report, "channel-constant", "observation.state").count == 18
    assert one(report, "channel-constant", "action").count == 25
    assert one(report, "index-column-missing").where.feature == "frame_index"
    assert "0.0500 s" in one(report, "timestamps-off").message
    assert "0:100" in one(report, "splits-lie").message
    assert {f.where.feature for f in report.of("totals-lie")} >= {"total_chunks"}
    assert 164 <= one(report, "key-frames-far-apart").data["frames"] <= 250
    assert not report.of("stats-quantiles-wrong")  # the one set with true pooled quantiles
    assert not report.of("stats-quantiles-missing")


def test_ioai_sets_are_told_what_their_readme_lists(real_datasets: Path) -> None:
    video = of_real(real_datasets, "ioai_v21_video")
    assert errors(video) == []
    assert {"observation.state", "episode_index"} <= {f.where.feature for f in video.of("dtype-differs")}
    image = of_real(real_datasets, "ioai_v21_image")
    assert errors(image) == ["dtype-differs"]
    assert "binary" in one(image, "dtype-differs", "observation.images.cam").message
    v30 = of_real(real_datasets, "ioai_v30_video")
    assert set(errors(v30)) == {"names-do-not-fit", "stats-missing", "task-not-text"}
    assert "data_chunk_index" in one(v30, "data-file-index-wrong").message
    for report in (video, v30):
        assert "[3, 64, 64]" in one(report, "camera-axes-differ", "observation.images.cam").message
    assert "absent" in one(video, "totals-lie", "total_chunks").message
    assert "no splits" in one(video, "splits-lie").message


@pytest.mark.lerobot
def test_what_lerobots_own_recorder_writes_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lerobot")
    import numpy as np

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf" / "datasets"))
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    vector = {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]}
    camera = {"dtype": "video", "shape": (64, 64, 3), "names": ["height", "width", "channels"]}
    dataset = LeRobotDataset.create(
        repo_id="test/recorded",
        fps=10,
        root=tmp_path / "recorded",
        features={"observation.state": vector, "action": dict(vector), "observation.images.cam": camera},
        use_videos=True,
    )
    rng = np.random.default_rng(0)
    for episode in range(2):
        for frame in range(20):
            picture = np.full((64, 64, 3), 60 + 40 * episode, np.uint8)
            picture[8:16, frame : frame + 8] = 255
            dataset.add_frame(
                {
                    "observation.state": rng.uniform(-1, 1, 3).astype(np.float32),
                    "action": rng.uniform(-1, 1, 3).astype(np.float32),
                    "observation.images.cam": picture,
                    "task": f"task {episode}",
                }
            )
        dataset.save_episode()
    dataset.finalize()
    report = audit(tmp_path / "recorded", policy=PolicyNeeds(action_horizon=10), deep=True)
    # The recorder averages the quantiles of episodes; that is its known fault, and the only one allowed here.
    wrong = {fault.code for fault in report.faults if fault.severity != "note"}
    assert wrong <= {"stats-quantiles-wrong", "stats-index-stale"}, report.faults
    assert report.facts.frames == 40
