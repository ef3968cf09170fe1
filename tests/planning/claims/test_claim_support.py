"""What a claim counts as follows from its numbers alone, and each number says what it is."""

import json
import math
from pathlib import Path

import pytest

from openwafer.figures import Figure, Origin
from openwafer.planning.claims import Case, Claim, Support, compute_claims, write_claims

CLAIMS = compute_claims()


def figure(value: float, origin: Origin = Origin.INFERRED) -> Figure:
    return Figure("duration", value, "d", origin, "made")


def claim(*days: float, least: float = 0.0, most: float = math.inf) -> Claim:
    cases = tuple(Case(str(day), (), figure(day)) for day in days)
    return Claim("made", figure(1, Origin.PUBLISHED), least, most, cases)


@pytest.mark.parametrize(
    ("days", "support"),
    [
        ((1, 1.4), Support.ALL),
        ((1, 2), Support.SOME),
        ((2, 3), Support.NONE),
        ((), Support.UNKNOWN),
    ],
)
def test_support_follows_from_the_numbers(days: tuple[float, ...], support: Support) -> None:
    assert claim(*days, most=1.5).support is support


def test_a_number_is_covered_from_the_least_to_below_the_most() -> None:
    made = claim(2, 3, 4, least=3, most=4)
    assert [made.covers(case) for case in made.cases] == [False, True, False]


def test_a_claim_without_a_number_cannot_be_checked() -> None:
    assert Claim("a curve", None).support is Support.UNKNOWN


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_what_is_claimed_is_published_and_what_is_computed_is_not(claim: Claim) -> None:
    assert claim.claimed is None or claim.claimed.origin is Origin.PUBLISHED
    assert all(case.computed.origin is Origin.INFERRED for case in claim.cases)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_cases_have_the_unit_of_the_claim_and_name_all_inputs(claim: Claim) -> None:
    for case in claim.cases:
        assert claim.claimed is not None
        assert case.computed.unit == claim.claimed.unit
        assert len(case.inputs) >= 2
        assert all(told.source for told in (*case.inputs, case.computed))


def test_a_published_number_lies_in_the_range_that_its_words_cover() -> None:
    for made in CLAIMS:
        assert made.claimed is None or made.least <= made.claimed.value <= made.most


def test_the_file_has_every_number_with_its_origin(tmp_path: Path) -> None:
    write_claims(tmp_path / "claims.json", CLAIMS)
    content = json.loads((tmp_path / "claims.json").read_text())
    assert (content["format"], content["version"]) == ("openwafer-claims", 1)
    first = content["claims"][0]
    assert first["most"] == 1.5
    assert first["support"] == "supported in some cases"
    origins = [case["computed"]["origin"] for case in first["cases"]]
    assert set(origins) == {"inferred"}
    assert [case["is_covered"] for case in first["cases"]][:3] == [False, False, True]
