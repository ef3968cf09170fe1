"""Native code and the interpreter do the same with the programs of the language pages."""

from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.fabric import Account, Scope, Simulator, SimulatorOptions
from openwafer.sdk.host.final_state import FinalState, difference, final_state
from openwafer.sdk.host.pe_code import EngineKind, build_engine
from openwafer.sdk.program.program import Program
from tests.sdk.csl.language.test_language_pages import EXAMPLES, EXPORTED, LAYOUT, Example
from tests.sdk.fabric.account_laws import check_laws
from tests.sdk.fabric.noted import Noted

MAX_CYCLES = 20_000
IN_DEFAULT_TESTS = ("operations-", "control-flow-")
RIGHT = [example for example in EXAMPLES if example.kind != "error"]
FEW = [example for example in RIGHT if example.name.startswith(IN_DEFAULT_TESTS)][::3]


def compiled(example: Example, folder: Path) -> Program:
    is_layout = "layout {" in example.program
    names = "".join(f'@export_name("{n}", fn()void);' for n in EXPORTED.findall(example.program))
    layout = example.program if is_layout else LAYOUT.replace("EXPORTS", names)
    (folder / "layout.csl").write_text(layout, encoding="utf-8")
    (folder / "pe.csl").write_text("" if is_layout else example.program, encoding="utf-8")
    return build_program(folder / "layout.csl", CompileOptions(arch=example.arch))


def ran(
    program: Program, kind: EngineKind
) -> tuple[FinalState, str, Account, dict[str, list[int]]]:
    """State behind every exported function without parameters, one after the other; what failed.

    Also the account of time, and events by column.
    """
    engine = build_engine(program, kind)
    options = SimulatorOptions(has_account=True, scope=Scope())
    simulator = Simulator(program, engine.run_address, engine.element_address, options)
    noted = Noted(simulator)
    names = [name.name for name in program.host_names if name.inputs == ()]
    failure = ""
    try:
        simulator.run_until_idle(MAX_CYCLES)
        for name in names:
            if not simulator.is_command_done():
                break
            entries = [dict(image.exported_functions).get(name, -1) for image in program.images]
            simulator.start_command(entries)
            simulator.run_until_idle(MAX_CYCLES)
    except OpenwaferError as error:
        failure = str(error)
    return final_state(program, simulator), failure, simulator.account(), noted.lists()


def compare(example: Example, folder: Path) -> None:
    program = compiled(example, folder)
    native, interpreted = (ran(program, kind) for kind in EngineKind)
    assert native[1] == interpreted[1]
    assert difference(native[0], interpreted[0]) == ""
    assert native[2].cycles.tolist() == interpreted[2].cycles.tolist()
    assert native[3] == interpreted[3]
    check_laws(native[2])


@pytest.mark.parametrize("example", FEW, ids=lambda example: example.name)
def test_engines_agree_on_programs_of_the_language_pages(tmp_path: Path, example: Example) -> None:
    compare(example, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("example", RIGHT, ids=lambda example: example.name)
def test_engines_agree_on_every_program_of_the_pages(tmp_path: Path, example: Example) -> None:
    compare(example, tmp_path)
