"""What must hold for any deliveries, not only for those that somebody thought of."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stack.dataset.digest import content_digest
from stack.dataset.read import read_dataset
from stack.dataset.write_plan import Caps
from stack.manifests import load_dataset_manifest
from stack.prepare import prepare

few = settings(
    deadline=None,
    max_examples=5,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # shrinking would write hundreds of datasets
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
STATE, ACTION = 3, 2
CAMERAS = (
    (),
    (("observation.images.head", 32, 32),),
    (("observation.images.head", 48, 32), ("wrist", 32, 32)),
)


@st.composite
def delivery_traits(draw: st.DrawFn, number: int, cameras: tuple[Any, ...], codec: str) -> dict[str, Any]:
    """The arguments of a small delivery: what may differ between two that are merged."""
    lengths = draw(st.lists(st.integers(1, 14), min_size=1, max_size=3))
    tasks = draw(
        st.lists(st.sampled_from(["fold", "把毛巾放进盒子", "stack"]), min_size=2, max_size=3, unique=True)
    )
    return {
        "number": number,
        "lengths": tuple(lengths),
        "state": STATE,
        "action": ACTION,
        "cameras": cameras,
        "tasks": tuple(tasks),
        "task_of": tuple(draw(st.lists(st.integers(0, len(tasks) - 1), min_size=1, max_size=3))),
        "double": draw(st.booleans()),
        "feature_fps": draw(st.booleans()),
        "listed": draw(st.sampled_from([(), ("ts",)])),
        "timescale": draw(st.sampled_from([12800, 90000])),
        "codec": codec,
        "chunks_size": draw(st.integers(1, 3)),
        "version": draw(st.sampled_from(["v2.0", "v2.1"])),
    }


def several(count: int) -> st.SearchStrategy[tuple[dict[str, Any], ...]]:
    """Deliveries of one robot: the same features, cameras and codec, all else free."""
    shared = st.tuples(st.sampled_from(CAMERAS), st.sampled_from(["libx264", "mpeg4"]))
    return shared.flatmap(lambda both: st.tuples(*(delivery_traits(n, *both) for n in range(count))))


caps = st.builds(
    Caps,
    data_mb=st.sampled_from([0.0001, 0.0008, 100.0]),
    video_mb=st.sampled_from([0.0001, 0.003, 200.0]),
    files_per_chunk=st.sampled_from([1, 2, 1000]),
)


class Bench:
    """Writes deliveries and prepares them, each in a folder of its own."""

    def __init__(self, root: Path, deliveries: ModuleType) -> None:
        self._root, self._deliveries, self._numbers = root, deliveries, itertools.count()

    def folder(self) -> Path:
        return self._root / f"{next(self._numbers):04d}"

    def deliver(self, traits: dict[str, Any]) -> Path:
        return Path(self._deliveries.write_delivery(self.folder(), self._deliveries.Delivery(**traits)))

    def prepare(self, sources: Sequence[Any], *, caps: Caps | None = None, **manifest: Any) -> Path:
        """Sources are folders, or (folder, episodes to leave out)."""
        entries: list[dict[str, Any]] = []
        for number, source in enumerate(sources):
            path, excluded = source if isinstance(source, tuple) else (source, [])
            entries.append({"path": str(path), "name": f"s{number}", "exclude_episodes": list(excluded)})
        file = self.folder().with_suffix(".yaml")
        text = {"schema": "stack/dataset/1", "name": "test", "sources": entries, **manifest}
        file.write_text(json.dumps(text, ensure_ascii=False))
        out = self.folder()
        prepare(load_dataset_manifest(file, allow_outside=True), out=out, jobs=1, caps=caps)
        return out


@pytest.fixture
def bench(tmp_path: Path, deliveries: ModuleType) -> Bench:
    return Bench(tmp_path, deliveries)


def digest(root: Path) -> str:
    return content_digest(read_dataset(root))


@few
@given(traits=several(3), small=caps)
def test_merging_is_associative(bench: Bench, traits: Any, small: Caps) -> None:
    a, b, c = (bench.deliver(one) for one in traits)
    at_once = digest(bench.prepare([a, b, c]))
    assert digest(bench.prepare([bench.prepare([a, b], caps=small), c])) == at_once
    assert digest(bench.prepare([a, bench.prepare([b, c])], caps=small)) == at_once
    # And not commutative: episodes keep their order, which the digest tells.
    if digest(a) != digest(c):
        assert digest(bench.prepare([c, b, a])) != at_once


@few
@given(traits=several(2), small=caps, data=st.data())
def test_dropping_then_merging_is_merging_then_dropping(
    bench: Bench, traits: Any, small: Caps, data: st.DataObject
) -> None:
    a, b = (bench.deliver(one) for one in traits)
    counts = [len(one["lengths"]) for one in traits]
    everything = range(sum(counts))
    gone = data.draw(st.sets(st.sampled_from(everything), max_size=len(everything) - 1))
    of_a = [episode for episode in gone if episode < counts[0]]
    of_b = [episode - counts[0] for episode in gone if episode >= counts[0]]
    merged = bench.prepare([a, b], caps=small)
    later = digest(bench.prepare([(merged, gone)]))
    parts = [(a, of_a), (b, of_b)]
    sooner = [part for part, count in zip(parts, counts, strict=True) if len(part[1]) < count]
    assert digest(bench.prepare(sooner, caps=small)) == later


@few
@given(traits=several(1), small=caps, videos=st.sampled_from(["join", "link"]))
def test_preparing_changes_no_content_however_it_is_packed(
    bench: Bench, traits: Any, small: Caps, videos: str
) -> None:
    source = bench.deliver(traits[0])
    packed = bench.prepare([source], caps=small, videos=videos)
    assert digest(packed) == digest(source)
    assert digest(bench.prepare([packed])) == digest(source)


@few
@given(traits=several(1), state=st.permutations(range(STATE)), action=st.permutations(range(ACTION)))
def test_slicing_everything_is_the_identity(bench: Bench, traits: Any, state: Any, action: Any) -> None:
    source = bench.deliver(traits[0])
    names = {"observation.state": [f"j{c}" for c in range(STATE)], "action": [f"a{c}" for c in range(ACTION)]}
    whole = {
        name: [{"from": name, "at": [0, len(channels)], "names": channels}]
        for name, channels in names.items()
    }
    plain = digest(source)
    assert digest(bench.prepare([source], features={**whole, "ts": [{"from": "ts"}]})) == plain
    # Channel by channel in any order, and back by name.
    shuffled = {
        name: [{"from": name, "at": [at, at + 1], "names": [channels[at]]} for at in order]
        for (name, channels), order in zip(names.items(), (state, action), strict=True)
    }
    mixed = bench.prepare([source], features={**shuffled, "ts": [{"from": "ts"}]})
    back = {
        name: [{"from": name, "at": [order.index(at), order.index(at) + 1]} for at in range(len(order))]
        for name, order in (("observation.state", list(state)), ("action", list(action)))
    }
    assert digest(bench.prepare([mixed], features={**back, "ts": [{"from": "ts"}]})) == plain
    moved = any(list(order) != sorted(order) for order in (state, action))
    assert (digest(mixed) != plain) == moved


@few
@given(traits=several(1), order=st.permutations(["observation.state", "action", "ts"]))
def test_the_order_of_features_is_irrelevant(bench: Bench, traits: Any, order: list[str]) -> None:
    source = bench.deliver(traits[0])
    asked = bench.prepare([source], features={name: [{"from": name}] for name in order})
    assert digest(asked) == digest(source)
    info = json.loads((source / "meta/info.json").read_text())
    features = info["features"]
    info["features"] = {name: features[name] for name in reversed(list(features))}
    (source / "meta/info.json").write_text(json.dumps(info))
    assert digest(source) == digest(asked)


@few
@given(traits=several(1), data=st.data())
def test_any_one_difference_is_seen(bench: Bench, traits: Any, data: st.DataObject) -> None:
    """The digest is worth something: one frame more, another task, another camera are another content."""
    one = traits[0]
    source = digest(bench.deliver(one))
    longer = tuple(n + 1 if e == 0 else n for e, n in enumerate(one["lengths"]))
    assert digest(bench.deliver({**one, "lengths": longer})) != source
    assert digest(bench.deliver({**one, "number": 1})) != source
    text = tuple(f"{task}!" for task in one["tasks"])
    assert digest(bench.deliver({**one, "tasks": text})) != source
