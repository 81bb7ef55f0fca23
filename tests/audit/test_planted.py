"""Every code of the catalogue: planted in a good dataset it is found at its place, and nowhere before."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.audit_plants import PLANTS, Plant, in_rows, nothing
from stack.audit import AuditReport, PolicyNeeds, audit
from stack.audit.catalogue import load_checks, load_kinds
from stack.audit.evidence import Evidence
from stack.audit.run import judge
from stack.faults import Place

# Not a property of a dataset: see test_audit.py. Those of pictures: see test_deep.py.
ELSEWHERE = {"unchecked-check", "video-one-colour", "video-repeated", "clip-picture-wrong"}
# Of the run, not of a check: see test_bounds.py. Others: test_between.py, test_openpi.py.
OF_NO_CHECK = {"unchecked-check", "unchecked-time-up"}


def of_datasets() -> set[str]:
    """Codes that are planted in one dataset."""
    return {c for c, kind in load_kinds().items() if kind.group not in ("between", "openpi")} - OF_NO_CHECK


@pytest.fixture(scope="module")
def of_good(good: dict[str, Path]) -> dict[str, AuditReport]:
    return {version: audit(root, policy=PolicyNeeds(), deep=True) for version, root in good.items()}


def matches(wanted: Place, found: Place) -> bool:
    return all(getattr(found, name) == value for name, value in wanted.to_json().items())


CASES = [(code, number) for code, plants in PLANTS.items() for number in range(len(plants))]


@pytest.mark.parametrize(("code", "number"), CASES, ids=[f"{code}-{n}" for code, n in CASES])
def test_planted_fault_is_found_at_its_place_and_nothing_else_is_accused(
    code: str, number: int, copy_good: Callable[[str], Path], of_good: dict[str, AuditReport]
) -> None:
    plant = PLANTS[code][number]
    root = copy_good(plant.version)
    plant.damage(root)
    report = audit(root, policy=PolicyNeeds(**plant.needs) if plant.policy else None, deep=plant.deep)
    severity = plant.severity or load_kinds()[code].severity
    found = [fault for fault in report.of(code) if fault.severity == severity]
    places = [place for fault in found for place in fault.places]
    assert any(matches(plant.where, place) for place in places), (plant.where, places, report.faults)
    others = {f.code for f in report.faults if f.severity == "error"} - {code} - plant.also
    assert not others, [f for f in report.faults if f.code in others]
    if plant.damage is not nothing:
        clean = {fault.code for fault in of_good[plant.version].faults}
        assert code not in clean or (code, severity) == ("stats-quantiles-missing", "warning")


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_good_data_has_no_fault_but_its_format(version: str, of_good: dict[str, AuditReport]) -> None:
    report = of_good[version]
    codes = {fault.code for fault in report.faults}
    assert codes == ({"format-needs-conversion", "stats-quantiles-missing"} if version == "v2.1" else set())
    assert report.ok
    assert not report.not_run


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_good_pictures_in_rows_have_no_fault(version: str, copy_good: Callable[[str], Path]) -> None:
    root = copy_good(version)
    in_rows(root)
    report = audit(root, policy=PolicyNeeds(), deep=True)
    assert {f.code for f in report.faults} <= {"format-needs-conversion", "stats-quantiles-missing"}
    assert report.measures.decoded is not None
    assert report.measures.decoded[0] == 2 * 264
    assert not report.not_run


def test_every_code_of_the_catalogue_is_planted() -> None:
    assert set(PLANTS) | ELSEWHERE == of_datasets() | {"unchecked-check"}
    assert not set(PLANTS) & ELSEWHERE


def test_every_severity_that_the_catalogue_allows_is_planted() -> None:
    for code in of_datasets():
        kind = load_kinds()[code]
        planted = {plant.severity or kind.severity for plant in PLANTS.get(code, [])}
        wanted = {kind.severity, *kind.also} if code not in ELSEWHERE | {"prompt-too-long"} else planted
        assert planted == wanted, code


def test_every_code_belongs_to_one_check() -> None:
    owners = [kind.code for check in load_checks() for kind in check.kinds]
    between = {code for code, kind in load_kinds().items() if kind.group == "between"}
    assert sorted(owners) == sorted(set(load_kinds()) - OF_NO_CHECK - between)


PAIRS = int(os.environ.get("STACK_AUDIT_PAIRS", "20"))
# Whoever has no info.json has hardly anything that can be looked at.
HIDES_ALL = {"info-missing", "info-not-json", "old-copy-beside"}


def _pairs() -> list[tuple[tuple[str, Plant], tuple[str, Plant]]]:
    """Errors and warnings of rows, files and metadata, two different ones of one version at a time."""
    kinds = load_kinds()
    single = [
        (code, way)
        for code, ways in PLANTS.items()
        for way in ways
        if way.damage is not nothing and way.policy and not (way.deep or way.needs or code in HIDES_ALL)
        if (way.severity or kinds[code].severity) != "note"
    ]
    rng, found = random.Random(PAIRS), []
    while len(found) < PAIRS:
        one, other = rng.sample(single, 2)
        if one[1].version == other[1].version and one[0] != other[0]:
            found.append((one, other))
    return found


def test_two_faults_do_not_hide_each_other(good: dict[str, Path], tmp_path: Path) -> None:
    """One may take away what the other is about, such as a file; then that one is told.

    STACK_AUDIT_PAIRS=1000 tries so many pairs instead of a few.
    """
    tried = 0
    for number, ((first, one), (second, other)) in enumerate(_pairs()):
        root = Path(shutil.copytree(good[one.version], tmp_path / str(number) / f"small-{one.version}"))
        try:
            one.damage(root)
            other.damage(root)
        except Exception:  # the first took away what the second changes
            continue
        tried += 1
        report = judge(Evidence(root), policy=PolicyNeeds())
        codes = {fault.code for fault in report.faults if fault.severity != "note"}
        assert codes & {first, second}, (first, second, codes)
        assert "unchecked-check" not in codes, (first, second, report.of("unchecked-check"))
        shutil.rmtree(root.parent)
    assert tried > 0.8 * PAIRS
