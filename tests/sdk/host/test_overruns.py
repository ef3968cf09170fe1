"""What users hear of vector operations that go over the end of an array."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.host import Runtime, RuntimeOptions
from openwafer.sdk.host.checks import stops_at_overrun_by_environment
from openwafer.sdk.host.ending import MAX_TOLD
from openwafer.sdk.host.pe_code import EngineKind
from openwafer.sdk.program.debug_info import Place
from openwafer.sdk.program.image import Entry, Image, Symbol
from openwafer.sdk.program.program import HostName, Program

_HEAD = """\
module "pe.csl" stack 64 memory 24576
place "pe.csl" 1 1 "main"
global @A 16 4
global @B 20 40
entry &main
fn &main() void {
head:
"""
_TAIL = """\
  open_stream !0
  return !0
}
"""
_INTO_A = "  %{n} = vector[add16] bool dsd(1, 16, 4, 0, 1, 1, 0, 0), {source}, 1:u16 !{n}\n"
_SIX = "dsd(1, 20, 6, 0, 1, 1, 0, 0)"
_BACK = "dsd(1, 21, 6, 0, 65535, 1, 0, 0)"
KINDS = list(EngineKind)


def program(*sources: str, shown: str = "") -> Program:
    """One PE that adds 1 to what its sources say, into an array of four."""
    lines = [_INTO_A.format(n=n, source=source) for n, source in enumerate(sources)]
    lines += [f"  {shown} !0\n"] if shown else []
    image = Image(
        name="pe.csl",
        code=_HEAD + "".join(lines) + _TAIL,
        data=bytes(120),
        stack_base=64,
        code_words=4,
        symbols=(Symbol("A", 16, 4, "i16", (4,)), Symbol("B", 20, 40, "i16", (40,))),
        entries=(Entry("main"),),
        exported_functions=(("main", 0),),
    )
    return Program(
        arch=Arch.WSE3,
        fabric=(9, 4),
        offset=(4, 1),
        images=(image,),
        image_of=np.zeros((1, 1), np.int32),
        parameters=np.zeros((1, 1, 0), np.int64),
        routes=((),),
        routes_of=np.zeros((1, 1), np.int32),
        host_names=(HostName(0, "main", "void", inputs=()),),
        places=tuple(Place("pe.csl", n + 1, 1, "main") for n in range(len(sources))),
    )


def ran(made: Program, folder: Path | None = None, **options: object) -> Runtime:
    given = RuntimeOptions(engine=EngineKind.NATIVE, log_folder=folder)
    runtime = Runtime(made, replace(given, **options))  # type: ignore[arg-type]
    runtime.load()
    runtime.run()
    runtime.launch("main")
    runtime.stop()
    return runtime


@pytest.mark.parametrize("engine", KINDS)
def test_both_engines_find_the_same(engine: EngineKind) -> None:
    found = ran(program(_SIX, _BACK), engine=engine).overruns()
    assert [(one.message, one.notes[0]) for one in found] == [
        (
            "@add16 of PE (0, 0) wrote up to 2 elements behind the end of 'A' ([4]i16)",
            "at pe.csl:1 (main), in 'main'",
        ),
        (
            "@add16 of PE (0, 0) wrote up to 2 elements behind the end of 'A' ([4]i16)",
            "at pe.csl:2 (main), in 'main'",
        ),
        (
            "@add16 of PE (0, 0) read up to 4 elements before the start of 'B' ([40]i16)",
            "at pe.csl:2 (main), in 'main'",
        ),
    ]


_FOUR = "dsd(1, 18, 4, 0, 1, 1, 0, 0)"
_FABRIC = "dsd(2, 3, {extent}, 0, 2, 2, 0, 0)"


@pytest.mark.parametrize("engine", KINDS)
@pytest.mark.parametrize(
    ("roles", "extent", "said"),
    [
        ("r1,n", 3, ["read up to 1 element behind the end of 'A' ([4]i16)"]),
        ("w1,n", 9, ["wrote up to 2 elements behind the end of 'A' ([4]i16)"]),
        ("r2,n", 2, ["read up to 1 element behind the end of 'A' ([4]i16)"]),
        ("w1,n", 2, []),
        ("w1,n", 0, []),
    ],
)
def test_both_engines_show_what_a_loop_over_descriptors_touches(
    engine: EngineKind, roles: str, extent: int, said: list[str]
) -> None:
    made = program(shown=f"show[{roles}] {_FOUR}, {_FABRIC.format(extent=extent)}")
    found = ran(made, engine=engine).overruns()
    assert [one.message for one in found] == [f"@map of PE (0, 0) {text}" for text in said]


def test_a_run_goes_on_and_ends_with_the_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    ran(program(_SIX))
    said = capsys.readouterr().err
    assert said.count("warning[fabric-overrun]: @add16 of PE (0, 0) wrote up to 2") == 1


def test_a_script_that_ends_without_a_stop_hears_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runtime = Runtime(program(_SIX), RuntimeOptions(log_folder=None))
    runtime.load()
    runtime.run()
    runtime.launch("main")
    runtime.launch("main")
    del runtime
    assert capsys.readouterr().err.count("warning[fabric-overrun]") == 1


def test_the_log_has_the_warnings(tmp_path: Path) -> None:
    ran(program(_SIX), tmp_path)
    lines = (tmp_path / "sim.log").read_text().splitlines()
    assert sum(line.startswith("warning[fabric-overrun]: @add16") for line in lines) == 1


def test_of_many_warnings_the_first_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    ran(program(*[_SIX] * (MAX_TOLD + 3)))
    said = capsys.readouterr().err
    assert said.count("warning[fabric-overrun]") == MAX_TOLD
    assert said.endswith("and 3 more warnings; sim.log has all of them\n")


def test_the_environment_makes_them_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENWAFER_OVERRUNS", "error")
    with pytest.raises(OpenwaferError, match=r"error\[fabric-overrun\]: @add16 of PE \(0, 0\)"):
        ran(program(_SIX))


def test_a_caller_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENWAFER_OVERRUNS", "error")
    assert len(ran(program(_SIX), stops_at_overrun=False).overruns()) == 1


def test_another_word_than_warning_or_error_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENWAFER_OVERRUNS", "errors")
    with pytest.raises(OpenwaferError, match="OPENWAFER_OVERRUNS is 'errors'"):
        stops_at_overrun_by_environment()


def test_one_place_in_several_images_is_one_warning() -> None:
    made = program(_SIX)
    others = tuple(replace(made.images[0], name=f"pe{n}.csl") for n in range(3))
    made = replace(
        made,
        images=others,
        image_of=np.arange(3, dtype=np.int32).reshape(1, 3),
        parameters=np.zeros((1, 3, 0), np.int64),
        routes_of=np.zeros((1, 3), np.int32),
    )
    (found,) = ran(made).overruns()
    assert found.notes[-1] == "3 distinct images do the same, this PE's is the first"
