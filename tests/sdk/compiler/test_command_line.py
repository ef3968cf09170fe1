"""The compiler's command line: both spellings, and values that are not of their form."""

from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.compiler.command_line import Stage, parse_command

BOTH_SPELLINGS = [
    "layout.csl --arch=wse3 --fabric-dims=8,3 --fabric-offsets=4,1 -o=made --channels=2",
    "--arch wse3 layout.csl --fabric-dims 8,3 --fabric-offsets 4,1 -o made --channels 2",
]


@pytest.mark.parametrize("line", BOTH_SPELLINGS)
def test_both_spellings_mean_the_same(line: str) -> None:
    command = parse_command(line.split())
    options = command.options
    assert (command.layout, command.output) == (Path("layout.csl"), Path("made"))
    assert (options.arch, options.fabric_dims, options.fabric_offsets, options.channels) == (
        Arch.WSE3,
        (8, 3),
        (4, 1),
        2,
    )


def test_without_options_it_is_wse2_into_out() -> None:
    command = parse_command(["layout.csl"])
    assert command.options.arch is Arch.WSE2
    assert command.output == Path("out")
    assert not command.options.is_memcpy


def test_params_of_several_options_add_up_in_order() -> None:
    command = parse_command(["a.csl", "--params=M:4,N:6", "--params", "K:-1"])
    assert command.options.params == (("M", "4"), ("N", "6"), ("K", "-1"))


def test_colors_are_numbers() -> None:
    assert parse_command(["a.csl", "--colors=x:1,y:0x2"]).options.colors == (("x", 1), ("y", 2))


def test_import_paths_of_the_environment_stand_behind_those_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CSL_IMPORT_PATH", "b:c")
    command = parse_command(["a.csl", "--import-path", "a"])
    assert command.options.import_paths == (Path("a"), Path("b"), Path("c"))


def test_a_stage_can_be_asked_for() -> None:
    assert parse_command(["a.csl", "--emit=ir"]).emit is Stage.IR


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--params=M", "--params: 'M' is not of the form NAME:VALUE"),
        ("--params=M:1,M:2", "--params: M is 1 and 2"),
        ("--colors=c:red", "--colors: 'red' is no integer"),
        ("--fabric-dims=8", "--fabric-dims takes two numbers, got '8'"),
        ("--fabric-dims=8,x", "--fabric-dims: 'x' is no integer"),
        ("-o=", "-o names no folder"),
        ("--channels=17", "--channels is 17; it goes from 1 to 16"),
    ],
)
def test_a_value_of_another_form_says_what_it_should_be(line: str, text: str) -> None:
    with pytest.raises(OpenwaferError) as found:
        parse_command(["a.csl", line])
    assert text in str(found.value)


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("--max-parallelism=4", "one process compiles"),
        ("--lomem-reservation-end=1", "--emit memory"),
        ("--link-section-start-address-bytes=1", "--emit memory"),
        ("-g0", "knows its source lines"),
        ("--single-pe", "the layout says"),
        ("--disable-auto-microthread-id", ".ut_id"),
        ("--dump-dsr-alloc-graph", "no registers"),
        ("--out-routes", "program.routes"),
    ],
)
def test_an_option_that_changes_nothing_is_a_warning(option: str, remedy: str) -> None:
    (warning,) = parse_command(["a.csl", option]).warnings
    assert warning.message == f"{option.partition('=')[0]} has no effect here"
    assert remedy in warning.help


def test_an_unknown_option_ends_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_command(["a.csl", "--memcopy"])
    assert "unrecognized arguments: --memcopy" in capsys.readouterr().err
