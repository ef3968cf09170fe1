"""Small programs for tests: analysed, verified, and run by the reference interpreter."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import WSE2
from openwafer.sdk.csl import types
from openwafer.sdk.csl.imports import ImportPaths
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.parser import parse
from openwafer.sdk.csl.sema.image import ImageResult, analyze_image, new_sema
from openwafer.sdk.csl.sema.modules import start_module
from openwafer.sdk.csl.types import Array, Type
from openwafer.sdk.csl.values import CellLvalue, Comptime, freeze
from openwafer.sdk.ir.interpreter import Interpreter
from openwafer.sdk.ir.numbers import decode
from openwafer.sdk.ir.verifier import verify
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import Outcome
from openwafer.source import SourceText, Span

FILE = Path("/program/main.csl")


def imports_of(text: str) -> ImportPaths:
    """Import paths that know the program without a file."""
    paths = ImportPaths(FILE.parent)
    paths.parsed[FILE] = parse(SourceText("main.csl", text))
    return paths


def analyze(
    text: str,
    params: dict[str, Comptime] | None = None,
    options: CompileOptions | None = None,
) -> ImageResult:
    """Analyse a program and verify its IR."""
    result = analyze_image(FILE, params or {}, options or CompileOptions(), imports_of(text))
    verify(result.module)
    return result


def known(text: str, name: str = "it", options: CompileOptions | None = None) -> Comptime:
    """Value of a global constant of a program."""
    sema = new_sema(FILE, {}, options or CompileOptions(), imports_of(text))
    start_module(sema, sema.module)
    place = sema.find_global(sema.module, name, _start(text))
    if sema.has_errors:
        raise OpenwaferError(*sema.diagnostics)
    assert isinstance(place, CellLvalue)
    return Comptime(place.type, freeze(place.cell.content))


def value(expression: str) -> object:
    """Value of an expression at compile time."""
    return known(f"const it = {expression};").value


def _start(text: str) -> Span:
    return Span(SourceText("main.csl", text), 0, 0)


def messages(text: str, options: CompileOptions | None = None) -> list[str]:
    """Messages of the errors of a program."""
    try:
        analyze(text, None, options)
    except OpenwaferError as error:
        return [found.message for found in error.diagnostics if found.severity == "error"]
    return []


@dataclass
class Memory:
    """A PE's memory behind a run."""

    image: ImageResult
    words: NDArray[np.uint16]

    def __getitem__(self, name: str) -> object:
        """Content of a global: a number, or a list for an array."""
        variable = self.image.state.variables[name]
        kind = variable.type
        element = kind.element if isinstance(kind, Array) else kind
        size = types.num_bytes(element)
        count = types.num_bytes(kind) // size
        read = [self._number(element, 2 * variable.address + i * size) for i in range(count)]
        return read if isinstance(kind, Array) else read[0]

    def _number(self, kind: Type, address: int) -> object:
        content = self.words.view(np.uint8)[address : address + types.num_bytes(kind)]
        bits = int.from_bytes(content.tobytes(), "little")
        return bool(bits) if kind == types.BOOL else decode(bits, types.ir_type(kind))


def run(text: str, *arguments: int) -> Memory:
    """Analyse a program, run its function `main`, and give its memory."""
    image = analyze(text + "\ncomptime { @export_symbol(main); }\n")
    words = np.zeros(image.module.memory_words, np.uint16)
    for variable in image.module.globals:
        end = variable.address + len(variable.initial)
        words[variable.address : end] = variable.initial
    box = np.zeros(mailbox.MAILBOX_WORDS, np.int64)
    box[mailbox.ARGUMENTS : mailbox.ARGUMENTS + len(arguments)] = arguments
    interpreter = Interpreter(image.module, (False,) * len(image.module.entries), WSE2)
    assert interpreter.run(0, box, words, 0, is_resume=False) is Outcome.FINISHED
    return Memory(image, words)


def result(body: str, kind: str = "i16", globals_: str = "") -> object:
    """What statements leave in the variable `out` of type `kind`."""
    return run(f"{globals_}\nvar out: {kind};\nfn main() void {{ {body} }}")["out"]
