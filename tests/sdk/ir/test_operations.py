"""The columns of the table of operations agree with each other."""

import pytest

from openwafer.sdk.ir.operations import OPERATIONS, PURE, SYNCED, Effect, with_effect

BLOCKS = {"block", "unblock"}


def test_what_touches_memory_without_asking_the_machine_keeps_the_order_of_cycles() -> None:
    touches = with_effect(Effect.READS, Effect.WRITES) - with_effect(Effect.SUSPENDS)
    assert touches | BLOCKS == SYNCED


def test_what_the_machine_serves_and_what_it_calls_are_borders() -> None:
    asks = with_effect(Effect.SUSPENDS, Effect.CALLS) - {"load_dsr"}
    assert asks <= with_effect(Effect.BORDER)


@pytest.mark.parametrize("name", sorted(with_effect(Effect.ENDS)))
def test_the_end_of_a_block_gives_nothing(name: str) -> None:
    assert OPERATIONS[name].result == "."


def test_what_is_pure_writes_nothing() -> None:
    assert not PURE & with_effect(Effect.WRITES, Effect.BORDER, Effect.ASSERTS, Effect.ENDS)
