"""`rename`: deliveries that call the same feature or camera by different names become one dataset."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import av
import pyarrow.parquet as pq
import pytest

from stack.audit import audit
from stack.dataset.read import read_dataset
from stack.errors import StackError
from stack.prepare import plan, prepare

HEAD, TOP = "observation.images.head", "observation.images.top"
LENGTHS = (4, 3)


@pytest.fixture
def apart(deliveries: ModuleType, tmp_path: Path) -> Path:
    """Two deliveries of one robot; the second says `state`, `actions` and `top`."""
    made = {"lengths": LENGTHS, "cameras": ((HEAD, 96, 64),)}
    deliveries.write_delivery(tmp_path / "a", deliveries.Delivery(**made))
    made["cameras"] = ((TOP, 96, 64),)
    other = deliveries.write_delivery(tmp_path / "b", deliveries.Delivery(number=1, **made))
    called = {"observation.state": "state", "action": "actions"}

    def change(info: dict[str, Any]) -> None:
        features = {called.get(name, name): entry for name, entry in info["features"].items()}
        info["features"] = features

    deliveries.edit_info(other, change)
    for episode in range(len(LENGTHS)):
        deliveries.edit_rows(
            other, episode, lambda t: t.rename_columns([called.get(n, n) for n in t.column_names])
        )
    return tmp_path


def sources(root: Path, rename: str = "{state: observation.state, actions: action, TOP: HEAD}") -> str:
    rename = rename.replace("TOP", TOP).replace("HEAD", HEAD)
    return f"sources:\n  - path: {root}/a\n  - path: {root}/b\n    rename: {rename}\n"


def states(deliveries: ModuleType, *parts: slice) -> list[list[float]]:
    meant = []
    for number in (0, 1):
        d = deliveries.Delivery(number=number, lengths=LENGTHS)
        for episode, length in enumerate(LENGTHS):
            for frame in range(length):
                state = deliveries.state_of(d, episode, frame)
                meant.append([v for part in parts for v in state[part]] if parts else state)
    return meant


def test_every_value_and_picture_is_there(apart, deliveries, load, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(load(sources(apart)), out=out, jobs=1)
    table = pq.read_table(next(out.glob("data/*/*.parquet")))
    assert table.column("observation.state").to_pylist() == states(deliveries)
    assert set(table.column_names) >= {"observation.state", "action"} and "state" not in table.column_names
    written = read_dataset(out)
    assert written.cameras == (HEAD,)
    for number, episode in enumerate(written.episodes):
        clip = episode.clips[HEAD]
        with av.open(str(clip.file)) as container:
            pictures = list(container.decode(video=0))[clip.start : clip.start + clip.count]
        got = [deliveries.read_identity(picture.to_ndarray(format="rgb24")) for picture in pictures]
        assert got == [
            deliveries.identity(*divmod(number, 2)[:1], 0, number % 2, n) for n in range(clip.count)
        ]
    assert not [fault for fault in audit(out).faults if fault.severity == "error"]
    told = json.loads((out / "meta/provenance.json").read_text())["operations"]
    renamed = {(step["from"], step["to"]) for step in told if step["do"].startswith("rename")}
    assert renamed == {("state", "observation.state"), ("actions", "action"), (TOP, HEAD)}
    assert {step["source"] for step in told if step["do"].startswith("rename")} == {"b"}


def test_the_rest_of_the_manifest_speaks_of_the_new_names(apart, deliveries, load, tmp_path: Path) -> None:
    text = sources(apart) + (
        "features: {s: [{from: observation.state, at: [6, 8]}, {from: observation.state, at: [0, 1]}]}\n"
        f"cameras: {{eye: {{from: {HEAD}}}}}\n"
    )
    prepare(load(text), out=tmp_path / "out", jobs=1)
    table = pq.read_table(next((tmp_path / "out").glob("data/*/*.parquet")))
    assert table.column("s").to_pylist() == states(deliveries, slice(6, 8), slice(0, 1))
    assert read_dataset(tmp_path / "out").cameras == ("eye",)


def test_names_may_change_places(apart, load) -> None:
    text = f"sources:\n  - path: {apart}/b\n    rename: {{state: actions, actions: state}}\n"
    (recipe,) = plan(load(text)).selection.recipes.values()
    taken = {name: take.feature.name for name, (take,) in recipe.columns.items() if name != "ts"}
    assert taken == {"actions": "state", "state": "actions"}


def test_the_plan_says_it(apart, load) -> None:
    text = plan(load(sources(apart))).text()
    assert "renamed: state -> observation.state" in text and f"renamed: camera {TOP} -> {HEAD}" in text
    assert "dropped" not in text


def test_a_feature_that_one_source_calls_otherwise_is_proposed(apart, load) -> None:
    """The line that is proposed names what the source has."""
    with pytest.raises(StackError) as caught:
        plan(load(sources(apart, "{}") + "features: {action: [{from: action}]}\n"))
    assert caught.value.id == "prepare-no-such-feature"
    assert "rename: {" in caught.value.do and ": action}" in caught.value.do


@pytest.mark.parametrize(
    ("rename", "code", "said"),
    [
        ("{stat: observation.state}", "prepare-rename-unknown", "did you mean 'state'?"),
        ("{index: number}", "prepare-rename-unknown", "'index'"),
        ("{state: actions}", "prepare-rename-taken", "cannot be called 'actions'"),
        ("{state: timestamp}", "prepare-rename-taken", "cannot be called 'timestamp'"),
        ("{state: x, actions: x}", "manifest-invalid", "two features would be called 'x'"),
        ("{state: ''}", "manifest-invalid", "no name for a feature or camera"),
        ("{state: a/b}", "manifest-invalid", "must not contain '/'"),
    ],
)
def test_what_cannot_be_renamed(apart, load, rename: str, code: str, said: str) -> None:
    with pytest.raises(StackError) as caught:
        plan(load(sources(apart, rename)))
    assert caught.value.id == code and said in caught.value.what
