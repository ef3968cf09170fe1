"""Code that is stepped does what native code does, whether it is stopped or not."""

from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.fabric import Simulator, SimulatorOptions
from openwafer.sdk.host.final_state import FinalState, difference, final_state
from openwafer.sdk.host.pe_code import EngineKind, Form, build_engine
from openwafer.sdk.program.program import Program
from tests.sdk.csl.language.test_language_pages import Example
from tests.sdk.host.test_engines_agree import FEW, MAX_CYCLES, RIGHT, compiled


def ran(program: Program, form: Form, *, has_stops: bool = False) -> tuple[FinalState, str]:
    """State behind every exported function without parameters, and what failed."""
    code = build_engine(program, EngineKind.NATIVE, form=form)
    options = SimulatorOptions(is_stepped=form is Form.STEPPED)
    simulator = Simulator(program, code.run_address, code.element_address, options)
    if has_stops:
        simulator.stepping.pes[:] = simulator.stepping.places[:] = -1
    failure = ""
    try:
        simulator.run_until_idle(MAX_CYCLES)
        for name in (one.name for one in program.host_names if one.inputs == ()):
            if not simulator.is_command_done():
                break
            simulator.start_command(
                [dict(image.exported_functions).get(name, -1) for image in program.images]
            )
            simulator.run_until_idle(MAX_CYCLES)
    except OpenwaferError as error:
        failure = str(error)
    return final_state(program, simulator), failure


def compare(example: Example, folder: Path) -> None:
    program = compiled(example, folder)
    native = ran(program, Form.PLAIN)
    for has_stops in (False, True):
        stepped = ran(program, Form.STEPPED, has_stops=has_stops)
        assert stepped[1] == native[1]
        assert difference(native[0], stepped[0]) == ""


@pytest.mark.parametrize("example", FEW, ids=lambda example: example.name)
def test_stepped_code_is_native_code(tmp_path: Path, example: Example) -> None:
    compare(example, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("example", RIGHT, ids=lambda example: example.name)
def test_stepped_code_of_every_program_of_the_pages(tmp_path: Path, example: Example) -> None:
    compare(example, tmp_path)
