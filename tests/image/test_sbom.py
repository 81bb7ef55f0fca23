"""Licences as wheels state them, and the bill of materials."""

from __future__ import annotations

import json
from email.parser import Parser

import pytest

from stack.errors import BadRequest
from stack.files import canonical_json
from stack.supply.licences import licence_of
from stack.supply.sbom import bill, read_components, table

from .conftest import Site, sha256, write_wheel


@pytest.mark.parametrize(
    ("metadata", "expression", "said"),
    [
        ("License-Expression: MIT OR Apache-2.0", "MIT OR Apache-2.0", None),
        ("License-Expression: apache-2.0", "Apache-2.0", None),  # SPDX identifiers have one spelling
        ("License-Expression: Nobody's Licence", None, "Nobody's Licence"),
        ("Classifier: License :: OSI Approved :: MIT License", "MIT", None),
        ("License: BSD\nClassifier: License :: OSI Approved :: Apache Software License", "Apache-2.0", None),
        ("License: BSD-3-Clause\nClassifier: License :: OSI Approved :: BSD License", "BSD-3-Clause", None),
        # A family of licences is no licence; nobody here decides which of them is meant.
        ("Classifier: License :: OSI Approved :: BSD License", None, "BSD License"),
        ("License: BSD", None, "BSD"),
        ("Classifier: License :: OSI Approved :: MIT License\n"
         "Classifier: License :: OSI Approved :: Apache Software License",
         None, "MIT / Apache-2.0"),
        ("License: MPL-2.0 AND MIT\nClassifier: License :: OSI Approved :: MIT License\n"
         "Classifier: License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)",
         "MPL-2.0 AND MIT", None),
        ("License: NVIDIA Proprietary Software\nClassifier: License :: Other/Proprietary License",
         None, "NVIDIA Proprietary Software"),
        ("License: Copyright (c) 2005\n  a whole text\n  of many lines", None, None),
        ("License: UNKNOWN", None, None),
        ("", None, None),
    ],
)  # fmt: skip
def test_a_licence_is_what_the_wheel_clearly_says(
    metadata: str, expression: str | None, said: str | None
) -> None:
    found = licence_of(Parser().parsestr(metadata + "\n"))
    assert (found.expression, found.said) == (expression, said)
    assert found.is_known == (expression is not None or said is not None)


@pytest.fixture
def stocked(site: Site) -> Site:
    top = (
        "License-Expression: Apache-2.0\nRequires-Dist: low>=1\nRequires-Dist: never; sys_platform == 'win32'"
    )
    site.pin("top", "1.0", write_wheel(site.wheels, "top", "1.0", metadata=top))
    site.pin("low", "2.0", write_wheel(site.wheels, "low", "2.0", metadata="License: BSD"))
    site.pin("quiet", "3.0+local", write_wheel(site.wheels, "quiet", "3.0+local"))
    return site


def test_the_bill_lists_every_wheel_with_hash_licence_and_needs(stocked: Site) -> None:
    made = bill(*read_components(stocked.manifest(), "site", stocked.locks, stocked.wheels))
    parts = {part["name"]: part for part in made["components"]}
    assert made["bomFormat"] == "CycloneDX" and made["specVersion"] == "1.6"
    assert set(parts) == {"top", "low", "quiet"}
    assert parts["top"]["licenses"] == [{"expression": "Apache-2.0"}]
    assert parts["low"]["licenses"] == [{"license": {"name": "BSD"}}]
    assert parts["quiet"]["licenses"] == [{"license": {"name": "unknown"}}]
    assert parts["quiet"]["purl"] == "pkg:pypi/quiet@3.0%2Blocal"
    for name, part in parts.items():
        (file,) = stocked.wheels.glob(f"{name}-*.whl")
        assert part["hashes"] == [{"alg": "SHA-256", "content": sha256(file)}]
    needs = {entry["ref"]: entry["dependsOn"] for entry in made["dependencies"]}
    assert needs[parts["top"]["bom-ref"]] == [parts["low"]["bom-ref"]]
    assert set(needs["stack-site"]) == {parts["top"]["bom-ref"], parts["quiet"]["bom-ref"]}


def test_equal_wheelhouses_give_equal_bytes_and_another_wheel_another_serial(stocked: Site) -> None:
    first = bill(*read_components(stocked.manifest(), "site", stocked.locks, stocked.wheels))
    again = bill(*read_components(stocked.manifest(), "site", stocked.locks, stocked.wheels))
    assert canonical_json(first) == canonical_json(again)
    stocked.pin("more", "1", write_wheel(stocked.wheels, "more", "1"))
    other = bill(*read_components(stocked.manifest(), "site", stocked.locks, stocked.wheels))
    assert other["serialNumber"] != first["serialNumber"]


def test_what_says_nothing_is_named_as_unknown(stocked: Site) -> None:
    _, parts = read_components(stocked.manifest(), "site", stocked.locks, stocked.wheels)
    assert table(parts).splitlines() == [
        "Apache-2.0 (1): top",
        "in its own words: BSD (1): low",
        "UNKNOWN (1): quiet",
    ]


def test_half_a_wheelhouse_is_not_listed(stocked: Site) -> None:
    next(stocked.wheels.glob("low-*")).unlink()
    with pytest.raises(BadRequest, match=r"low==2\.0"):
        read_components(stocked.manifest(), "site", stocked.locks, stocked.wheels)


def test_it_fits_cyclonedx_own_schema(stocked: Site) -> None:
    """Where CycloneDX's own library is installed (it is not one of our packages)."""
    validation = pytest.importorskip(
        "cyclonedx.validation.json", reason="cyclonedx-python-lib is not installed"
    )
    schema = pytest.importorskip("cyclonedx.schema")
    made = bill(*read_components(stocked.manifest(), "site", stocked.locks, stocked.wheels))
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(json.dumps(made)) is None
