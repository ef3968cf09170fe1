"""The compiler's command line, in both spellings of every option: ``--k=v`` and ``--k v``."""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from openwafer.diagnostics import Diagnostic, Severity, error
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.options import CompileOptions

IMPORT_PATH_VARIABLE: Final = "CSL_IMPORT_PATH"
"""Folders for ``<name>`` imports, separated by colons, behind those of the command line."""

_MEMORY: Final = "cslc --emit memory prints where variables lie"
_WITHOUT_EFFECT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--max-parallelism": "one process compiles",
        "--lomem-reservation-end": _MEMORY,
        "--link-section-start-address-bytes": _MEMORY,
    }
)
"""Options of the vendor's compiler that change nothing here, each with what there is instead."""
_FLAGS_WITHOUT_EFFECT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "-g0": "a program always knows its source lines",
        "--single-pe": "the layout says how many PEs there are",
        "--disable-auto-microthread-id": "give operations a .ut_id",
        "--dump-dsr-alloc-graph": "operations on descriptors take no registers of the program",
        "--out-routes": "read the routes from the program: wafer.load(FOLDER).program.routes",
    }
)


class Stage(StrEnum):
    """What ``--emit`` shows in place of compiling to a folder."""

    AST = "ast"
    IR = "ir"
    LLVM = "llvm"
    MEMORY = "memory"


@dataclass(frozen=True)
class Command:
    """One call of the compiler.

    Attributes:
        layout: the CSL file with the layout block.
        output: folder to write.
        emit: stage to print in place of writing.
        output_json: where to put a copy of ``out.json``.
        is_verbose: say what was compiled, and how long it took.
        warnings: about options that change nothing.
    """

    layout: Path
    options: CompileOptions
    output: Path = Path("out")
    emit: Stage | None = None
    output_json: Path | None = None
    is_verbose: bool = False
    warnings: tuple[Diagnostic, ...] = ()


def parse_command(arguments: Sequence[str]) -> Command:
    """Parse what stands behind ``cslc``.

    Raises OpenwaferError for values that are not of their option's form, SystemExit for ``--help``
    and for options that do not exist.
    """
    parsed = _parser().parse_args(arguments)
    environment = os.environ.get(IMPORT_PATH_VARIABLE, "")
    import_paths = [*parsed.import_path, *(part for part in environment.split(":") if part)]
    options = CompileOptions(
        arch=Arch(parsed.arch),
        fabric_dims=_pair("--fabric-dims", parsed.fabric_dims),
        fabric_offsets=_pair("--fabric-offsets", parsed.fabric_offsets),
        params=_mappings("--params", parsed.params),
        colors=tuple(
            (name, _integer("--colors", value))
            for name, value in _mappings("--colors", parsed.colors)
        ),
        is_memcpy=parsed.memcpy,
        channels=_channels(parsed.channels),
        width_west_buf=parsed.width_west_buf,
        width_east_buf=parsed.width_east_buf,
        import_paths=tuple(Path(path) for path in import_paths),
        fp16_format=parsed.fp16_format,
        max_inlined_iterations=parsed.max_inlined_iterations,
        comptime_func_depth_limit=parsed.comptime_func_depth_limit,
        comptime_step_limit=parsed.comptime_step_limit,
        release=parsed.sdk_release,
        are_warnings_errors=parsed.warnings_as_errors,
        is_strict=parsed.strict,
    )
    emit = Stage(parsed.emit) if parsed.emit else None
    output_json = Path(parsed.output_json) if parsed.output_json else None
    return Command(
        Path(parsed.layout),
        options,
        _output(parsed.output),
        emit,
        output_json,
        parsed.verbose,
        tuple(_ignored(parsed)),
    )


def _output(text: str) -> Path:
    if not text:
        message = "-o names no folder"
        raise error("option-value", message, help="write -o FOLDER, or -o . for the working folder")
    return Path(text)


def _ignored(parsed: argparse.Namespace) -> Iterator[Diagnostic]:
    for option, remedy in {**_WITHOUT_EFFECT, **_FLAGS_WITHOUT_EFFECT}.items():
        given = getattr(parsed, option.lstrip("-").replace("-", "_"))
        if given:
            message = f"{option} has no effect here"
            yield Diagnostic(Severity.WARNING, "option-ignored", message, help=remedy)


def _parser() -> argparse.ArgumentParser:
    defaults = CompileOptions()
    parser = argparse.ArgumentParser(
        prog="cslc",
        description="Compile a CSL program for the simulated fabric.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("layout", metavar="FILE.csl", help="the file with the layout block")
    add("-o", dest="output", default="out", metavar="FOLDER", help="output folder (out)")
    add("--arch", choices=[str(arch) for arch in Arch], default=str(defaults.arch))
    add("--fabric-dims", metavar="W,H", help="columns and rows of the whole fabric")
    add("--fabric-offsets", metavar="X,Y", help="place of the rectangle's north-west PE")
    add("--params", action="append", default=[], metavar="NAME:VALUE[,...]", help="repeatable")
    add("--colors", action="append", default=[], metavar="NAME:ID[,...]", help="repeatable")
    add("--memcpy", action="store_true", help="the host copies and launches")
    add("--channels", type=int, default=defaults.channels, metavar="K", help="1 to 16")
    add("--width-west-buf", type=int, default=0, metavar="N", help="columns of input buffers")
    add("--width-east-buf", type=int, default=0, metavar="N", help="columns of output buffers")
    add("--fp16-format", choices=["f16", "cb16", "bf16"], default=defaults.fp16_format)
    add("--import-path", action="append", default=[], metavar="FOLDER", help="repeatable")
    add("--max-inlined-iterations", type=int, default=defaults.max_inlined_iterations)
    add("--comptime-func-depth-limit", type=int, default=defaults.comptime_func_depth_limit)
    add("--comptime-step-limit", type=int, default=defaults.comptime_step_limit)
    add("--warnings-as-errors", action="store_true")
    add("--sdk-release", choices=["1.4", "2.10"], default="", help="taken from the program")
    add("--strict", action="store_true", help="refuse what the vendor's documentation forbids")
    add("--output-json", nargs="?", metavar="FILE", help="put a copy of out.json there")
    add("--verbose", action="store_true", help="say what was compiled, and how long it took")
    add("--emit", choices=[str(stage) for stage in Stage], help="print a stage, write nothing")
    for name in _WITHOUT_EFFECT:
        add(name, help="accepted, with a warning: no effect here")
    for name in _FLAGS_WITHOUT_EFFECT:
        add(name, action="store_true", help="accepted, with a warning: no effect here")
    return parser


def _pair(option: str, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 2:
        raise error(
            "option-value", f"{option} takes two numbers, got {text!r}", help=f"write {option}=8,3"
        )
    return _integer(option, parts[0]), _integer(option, parts[1])


def _integer(option: str, text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise error("option-value", f"{option}: {text!r} is no integer") from None


def _mappings(option: str, texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    mappings: dict[str, str] = {}
    for item in (item for text in texts for item in text.split(",") if item):
        name, separator, value = (part.strip() for part in item.partition(":"))
        if not (name and separator and value):
            raise error(
                "option-value",
                f"{option}: {item!r} is not of the form NAME:VALUE",
                help=f"write {option}=M:4,N:6",
            )
        if mappings.setdefault(name, value) != value:
            raise error("option-value", f"{option}: {name} is {mappings[name]} and {value}")
    return tuple(mappings.items())


def _channels(number: int) -> int:
    if not 1 <= number <= 16:
        raise error("option-value", f"--channels is {number}; it goes from 1 to 16")
    return number
