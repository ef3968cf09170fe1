"""The simulator's records in the form that scripts parse."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from openwafer.sdk.host import Region, Runtime, RuntimeOptions
from openwafer.sdk.host.sim_log import wants_landings, warn_of_debug_words
from tests.sdk.door.small_program import small_program
from tests.sdk.host.hand_built import PROGRAM

LANDING = re.compile(
    r"@\d+ P\d+\.\d+ \(hwtile\) landing C\d+ from link [RWENS], ctrl=[01], idx=[0-9A-F]{4}, "
    r"data=[0-9A-F]{4} \(\S+\), half=\d, ident=[0-9A-F]{16}, lf=\d"
)


@pytest.fixture
def log(tmp_path: Path) -> list[str]:
    runtime = Runtime(PROGRAM, RuntimeOptions(log_folder=tmp_path))
    runtime.load()
    runtime.run()
    runtime.send(5, np.full((2, 2, 1), 0x3C00, np.uint32), Region(0, 0, 2, 2, 1))
    runtime.stop()
    return (tmp_path / "sim.log").read_text().splitlines()


def test_the_log_names_the_fabric_and_the_cycles(log: list[str]) -> None:
    assert "@0 dimX=9, dimY=4" in log
    assert re.fullmatch(r"Simulation used \d+\.\d+ seconds, \d+ cycles", log[-1])


def test_every_landing_has_the_documented_form(log: list[str]) -> None:
    events = [line for line in log if line.startswith("@") and " P" in line]
    assert [line for line in events if not LANDING.fullmatch(line)] == []


@pytest.mark.parametrize(
    ("value", "is_wanted"), [("landing,inst_trace", True), ("inst_trace", False), ("", False)]
)
def test_the_environment_asks_for_landings(
    monkeypatch: pytest.MonkeyPatch, value: str, is_wanted: bool
) -> None:
    monkeypatch.setenv("SINGULARITYENV_SIMFABRIC_DEBUG", value)
    assert wants_landings() is is_wanted


def test_what_the_log_has_not_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SIMFABRIC_DEBUG", "landing,inst_trace,registers")
    warn_of_debug_words()
    assert "SIMFABRIC_DEBUG=registers has no effect here" in capsys.readouterr().err


def test_statistics_count_cycles_of_copies_apart(tmp_path: Path) -> None:
    runtime = Runtime(PROGRAM, RuntimeOptions(log_folder=tmp_path))
    runtime.load()
    runtime.run()
    number, region = runtime.get_id("A"), Region(0, 0, 2, 2, 2)
    runtime.copy_to_device(number, np.zeros((2, 2, 2), np.uint32), region)
    runtime.launch("scale", 2.0)
    runtime.stop()
    found = json.loads((tmp_path / "sim_stats.json").read_text())
    words, columns_and_rows = 8, 2 + 2
    assert found["copy_cycle_count"] == words + columns_and_rows


def test_statistics_count_tiles_and_cycles(log: list[str], tmp_path: Path) -> None:
    found = json.loads((tmp_path / "sim_stats.json").read_text())
    assert (found["hwtile_count"], found["nultile_count"], found["tile_count"]) == (4, 32, 36)
    assert f"{found['cycle_count']} cycles" in log[-1]


def test_statistics_name_the_threads_that_the_environment_asks_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENWAFER_THREADS", "2")
    runtime = Runtime(PROGRAM, RuntimeOptions(log_folder=tmp_path))
    runtime.load()
    runtime.run()
    runtime.stop()
    assert json.loads((tmp_path / "sim_stats.json").read_text())["threads"] == 2


@pytest.mark.usefixtures("log")
def test_statistics_have_the_rates_that_scripts_compare(tmp_path: Path) -> None:
    found = json.loads((tmp_path / "sim_stats.json").read_text())
    assert found["simulated_tile_count"] == 4
    assert found["tile_cycles_per_second"] == 4 * found["cycles_per_second"]
    rate = found["tile_cycles_per_second_per_thread"]
    assert rate == found["tile_cycles_per_second"] / found["threads"]


INSTRUCTION = re.compile(
    r"@(\d+)\s+P(\d+)\.(\d+):\s+Id:\s+\d+,\s+Instr:\s+\d+,\s+Seq:\s+\d+,\s+Pipe:\s+\d+,\s+Msg:"
    r"\s+\[(?:IS|EX)\s+OP\]\s+(?:IDLE|0x\w+:\s+T\d+(?:\.UT\d)?\s+(\w+).*)"
)
STALL = re.compile(
    r"@\d+ P\d+\.\d+:.* Pipe: \d+, Msg: stall: Not enough wavelets \(0/1\) for SRC0 with C\d+, "
    r"IN_Q\[\d+\], SIMD-1"
)


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run of a program whose host is late with its words."""
    monkeypatch.setenv("SIMFABRIC_DEBUG", "inst_trace")
    monkeypatch.chdir(tmp_path)
    with small_program(tmp_path).run(RuntimeOptions(log_folder=tmp_path)) as run:
        run.launch("add", 1.0, 2)
        run.send("MEMCPYH2D_1", np.ones((1, 1, 4), np.float32), 0, 2)
        run.receive("MEMCPYD2H_1", 4, np.float32, 0, 2)
    return tmp_path


def test_a_trace_has_tasks_operations_and_stalls_in_the_order_of_cycles(traced: Path) -> None:
    lines = [line for line in (traced / "sim.log").read_text().splitlines() if "Msg: " in line]
    found = [INSTRUCTION.fullmatch(line) for line in lines]
    assert all(one or STALL.fullmatch(line) for one, line in zip(found, lines, strict=True))
    done = {one[4] for one in found if one}
    assert {None, "CODE"} < done
    cycles = [int(one[1]) for one in found if one]
    assert cycles == sorted(cycles)


def test_counts_of_a_trace_are_those_of_the_account(traced: Path) -> None:
    stats = json.loads((traced / "sim_stats.json").read_text())
    log = (traced / "sim.log").read_text()
    for name in ("num_wavelets", "num_stalls_", "num_inst_dispatch", "num_inst_pipe"):
        assert f"CTF Stats: {name} = {stats[name]}\n" in log
    assert stats["num_inst_pipe"] > stats["num_inst_dispatch"] > 0
    idle = re.search(rf"cycles={stats['cycle_count']}, (\d+) cycles since an instruction was", log)
    assert idle is not None
    assert int(idle[1]) < stats["cycle_count"]
    assert stats["sim_stop_cause"] == "Stopped due to idleness"
