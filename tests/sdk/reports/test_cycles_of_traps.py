"""A trap is reported at the cycle of the PE's own clock, which runs ahead of the fabric's."""

import re
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host import Runtime, RuntimeOptions
from openwafer.sdk.host.pe_code import EngineKind
from openwafer.sdk.program.mailbox import MOST_CYCLES
from tests.sdk.reports.report_file import FOLDER, ReportFile, read

COUNTS = """
var n: u32 = 0;
fn main() void {
  while (n < LIMIT) { n += 1; }
  @assert(n == 4);
  finish();
}
"""


def stopped_at(file: ReportFile, engine: EngineKind) -> int:
    """The cycle at which the report says that the program's only PE stopped."""
    runtime = Runtime(file.compiled(), RuntimeOptions(engine, log_folder=None))
    runtime.load()
    runtime.run()
    runtime.launch("main")
    with pytest.raises(OpenwaferError) as stopped:
        runtime.stop()
    found = re.search(r"PE \(0, 0\) stopped at cycle (\d+): ", str(stopped.value))
    assert found
    return int(found[1])


def counting(limit: int, engine: EngineKind) -> int:
    program = COUNTS.replace("LIMIT", str(limit))
    return stopped_at(ReportFile(Path("counts.csl"), program, ("width 1",), ""), engine)


@pytest.mark.parametrize("engine", list(EngineKind))
def test_a_longer_loop_before_a_failed_assertion_makes_it_later(engine: EngineKind) -> None:
    apart = counting(300, engine) - counting(200, engine)
    assert apart == counting(200, engine) - counting(100, engine)
    assert apart >= 100


def test_both_engines_report_the_same_cycle() -> None:
    assert counting(100, EngineKind.NATIVE) == counting(100, EngineKind.INTERPRETER) > 100


def test_an_endless_loop_stops_soon_behind_its_limit() -> None:
    cycle = stopped_at(read(FOLDER / "endless_loop.csl"), EngineKind.NATIVE)
    assert MOST_CYCLES < cycle < MOST_CYCLES + 10_000_000
