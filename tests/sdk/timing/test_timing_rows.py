"""The rows of the published tables, measured by programs on the simulated machine."""

from functools import cache
from pathlib import Path

import pytest

from benchmarks.timing.rows import Row, chain_reduction, fabric_rows, one_pe_rows, run
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.arch.timing import ORIGINS, RULES
from openwafer.sdk.host.pe_code import EngineKind
from tests.tables import some

BOTH = pytest.mark.parametrize("arch", list(Arch))
ONE = pytest.mark.parametrize("arch", some(Arch, Arch.WSE3))


@cache
def rows(arch: Arch) -> tuple[Row, ...]:
    return (*one_pe_rows(arch), *fabric_rows(arch))


@ONE
@pytest.mark.parametrize("kind", ["operation", "fabric", "scalar"])
def test_rows_are_as_close_as_their_kind_asks(arch: Arch, kind: str) -> None:
    chosen = [row for row in rows(arch) if row.kind == kind]
    assert chosen
    assert [row for row in chosen if not row.is_close] == []


@pytest.mark.slow
def test_rows_that_something_was_fitted_to_are_in_the_table() -> None:
    names = {name for a in Arch for row in rows(a) for name in (row.name, f"{row.name}, {a}")}
    page = Path(__file__).parents[3] / "docs/design/timing-table.inc"
    for line in page.read_text().splitlines():
        _, name, arch, *_ = map(str.strip, line.split("|"))
        names |= {name, f"{name}, {arch}"}
    fitted = {name for origin in ORIGINS.values() for name in origin.fitted}
    assert fitted | {name for rule in RULES.values() for name in rule} <= names


@pytest.mark.slow
def test_a_long_chain_reduction_takes_the_published_cycles() -> None:
    row = chain_reduction(512, 4096)
    assert row.published == 7218
    assert row.is_close


@BOTH
@pytest.mark.parametrize("is_sum", [False, True])
def test_the_interpreter_takes_the_cycles_of_native_code(arch: Arch, is_sum: bool) -> None:
    native, oracle = (
        run(
            "chain",
            arch,
            engine=engine,
            has_log=True,
            width=3,
            extent=4,
            is_sum=is_sum,
            out_queue=4,
        )
        for engine in EngineKind
    )
    assert native.simulator.landings() == oracle.simulator.landings()
    assert native.elapsed((0, 0), (2, 2)) == oracle.elapsed((0, 0), (2, 2))


@BOTH
def test_tasks_take_the_same_cycles_in_both_engines(arch: Arch) -> None:
    native, oracle = (
        run("loop_back", arch, engine=engine, extent=5, has_task=True).elapsed()
        for engine in EngineKind
    )
    assert native == oracle


@BOTH
def test_a_word_for_a_row_arrives_as_long_after_the_start_of_each_pe(arch: Arch) -> None:
    device = run("relay", arch, width=6, height=1, has_tasks=False)
    assert len({device.note(2, x) for x in range(1, 6)}) == 1
