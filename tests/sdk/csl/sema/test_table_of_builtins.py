"""The contract of builtins, and what evaluates them."""

from pathlib import Path

import pytest

from openwafer.sdk.csl.sema.builtins.table import SIGNATURES, Where
from openwafer.sdk.csl.sema.sema import BUILTINS
from tests.sdk.csl.machine.one_pe import MAIN, refusal

PLACES = {
    Where.LAYOUT: "is for the layout block",
    Where.START: "is for the comptime block at the top of a file",
    Where.CODE: "cannot run at compile time",
}
COUNTS = {name: one.counts[-1] for name, one in SIGNATURES.items() if one.counts is not None}


def calls(where: Where, num_more: int) -> str:
    """A call of each builtin of a place, with so many arguments more than it takes."""
    return " ".join(
        f"@{name}({', '.join('1' for _ in range(count + num_more))});"
        for name, count in COUNTS.items()
        if SIGNATURES[name].where is where
    )


def test_each_row_has_a_handler_and_each_handler_a_row() -> None:
    assert SIGNATURES.keys() == BUILTINS.keys()


def test_another_number_of_arguments_is_refused(tmp_path: Path) -> None:
    text = refusal(tmp_path, "\n".join(f"comptime {{ {calls(where, 1)} }}" for where in Where))
    assert [name for name in COUNTS if f"'@{name}' expects" not in text] == []


@pytest.mark.parametrize("where", PLACES)
def test_a_call_at_another_place_is_refused(tmp_path: Path, where: Where) -> None:
    block = "comptime" if where is Where.CODE else "fn main() void"
    source = f"{block} {{ {calls(where, 0)} }} comptime {{ @export_symbol(main); }}"
    text = refusal(tmp_path, source, exports=MAIN)
    names = [name for name in COUNTS if SIGNATURES[name].where is where]
    assert [name for name in names if f"@{name} {PLACES[where]}" not in text] == []
