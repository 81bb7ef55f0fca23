import pytest

from stack.errors import BadRequest
from stack.manifests.strict_yaml import parse, parse_scalar


def test_scalars_follow_yaml_1_2_and_not_pyyaml() -> None:
    text = "country: no\nswitch: on\nratio: 1e5\nclock: 12:30\nversion: 1.10\n"
    text += "day: 2026-01-02\nnone: ~\nyes: true\n"
    assert parse(text, "f").data == {
        "country": "no",
        "switch": "on",
        "ratio": 100000.0,
        "clock": "12:30",
        "version": 1.10,
        "day": "2026-01-02",
        "none": None,
        "yes": True,
    }


def test_quoted_scalars_stay_text() -> None:
    assert parse("a: '1'\nb: \"true\"\n", "f").data == {"a": "1", "b": "true"}


@pytest.mark.parametrize(
    ("text", "id", "where"),
    [
        ("a: 1\nb: 2\na: 3\n", "manifest-duplicate-key", "f:3:1"),
        ("a: [1, 2\n", "manifest-not-yaml", "f:2:1"),
        ("a: !!python/object:os.system x\n", "manifest-yaml-tag", "f:1:4"),
        ("[a]: 1\n", "manifest-key-not-text", "f:1:1"),
    ],
)
def test_what_is_ambiguous_is_refused_at_its_place(text: str, id: str, where: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(text, "f")
    assert (caught.value.id, caught.value.where) == (id, where)


def test_positions_of_nested_values() -> None:
    document = parse("a:\n  - x: 1\n    y: 2\n", "f")
    assert document.where(("a", 0, "y")) == "f:3:5"
    assert document.where(("a", 0, "not", "there")) == "f:2:5"


def test_override_values_are_read_like_the_file() -> None:
    assert parse_scalar("[1, 2]") == [1, 2]
    assert parse_scalar("no") == "no"
