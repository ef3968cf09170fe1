"""openwafer claims, as a table and a JSON file."""

import json
import re
from pathlib import Path

from tests.cli.command import run_command


def test_claims_are_told_beside_what_is_computed() -> None:
    done = run_command("claims")
    assert (done.code, done.err) == (0, "")
    assert re.search(
        r"^GPT-3 in a day on 192 CS-2 +is +supported in some cases\s*\n"
        r"claimed +1 d +published +Lie, Hot Chips 33 \(2021\)\s*\n"
        r"dense, all of the peak +3\.29 d +inferred +not covered",
        done.out,
        re.MULTILINE,
    )


def test_a_claim_without_a_number_says_so() -> None:
    assert re.search(r"^curves of .* cannot be checked", run_command("claims").out, re.MULTILINE)


def test_claims_are_written_as_json(tmp_path: Path) -> None:
    done = run_command("claims", "--json", tmp_path / "claims.json")
    assert done.out.endswith(f"wrote {tmp_path / 'claims.json'}\n")
    assert len(json.loads((tmp_path / "claims.json").read_text())["claims"]) == 16
