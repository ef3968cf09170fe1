"""Names that the host knows of a program: what they are and where they live on a PE."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from openwafer.diagnostics import OpenwaferError, did_you_mean, error
from openwafer.sdk.arch.generation import MEMORY_WORDS
from openwafer.sdk.program.image import Image, Symbol
from openwafer.sdk.program.program import HostName, Program


@dataclass(frozen=True)
class HostSymbols:
    """The host's view of a program's names.

    Ids are those of ``bin/out_rpc.json``. All lookups raise OpenwaferError for what is not there.
    """

    program: Program

    @cached_property
    def _by_name(self) -> Mapping[str, HostName]:
        return {name.name: name for name in self.program.host_names}

    @cached_property
    def _by_id(self) -> Mapping[int, HostName]:
        return {name.id: name for name in self.program.host_names}

    def named(self, name: str) -> HostName:
        """Return the exported name."""
        if name not in self._by_name:
            raise error(
                "host-name-unknown",
                f"the program exports no name {name!r}",
                help=did_you_mean(name, self._by_name) or "export it with @export_name",
            )
        return self._by_name[name]

    def variable(self, number: int) -> HostName:
        """Return the exported variable or pointer of that id."""
        found = self._by_id.get(number)
        if found is None or found.inputs is not None:
            kind = "no exported name has it" if found is None else f"{found.name} is a function"
            raise error(
                "host-symbol-unknown",
                f"{number} is the id of no exported variable: {kind}",
                help="take ids from get_id; a stream's color needs streaming=True",
            )
        return found

    def variable_named(self, name: str) -> HostName:
        """Return the exported variable or pointer of that name."""
        found = self.named(name)
        if found.inputs is not None:
            raise error(
                "host-symbol-unknown",
                f"{name!r} is a function of the program, and no variable",
                help=f'launch("{name}") starts it',
            )
        return found

    def function(self, key: str | int) -> HostName:
        """Return the exported function of that name or id."""
        found = self.named(key) if isinstance(key, str) else self._by_id.get(key)
        if found is None or found.inputs is None:
            raise error(
                "host-function-unknown",
                f"{key!r} is no exported function",
                help=did_you_mean(
                    str(key),
                    [name.name for name in self._by_id.values() if name.inputs is not None],
                ),
            )
        return found

    def entries(self, function: HostName) -> tuple[int, ...]:
        """Return the function's entry in each image, -1 where an image does not export it.

        Raises OpenwaferError where none does: nothing would run.
        """
        entries = tuple(
            dict(image.exported_functions).get(function.name, -1) for image in self.program.images
        )
        if max(entries, default=-1) < 0:
            raise error(
                "host-function-missing",
                f"no PE exports the function {function.name!r}, which the layout names",
                help=f"add @export_symbol({function.name}) to the comptime block of its file",
            )
        return entries

    def image_at(self, x: int, y: int) -> Image:
        """Return the image of a PE of the rectangle."""
        if not (0 <= x < self.program.width and 0 <= y < self.program.height):
            raise error(
                "host-coordinate",
                f"PE ({x}, {y}) is outside of the rectangle of "
                f"{self.program.width} by {self.program.height}",
            )
        return self.program.images[int(self.program.image_of[y, x])]

    def exported(self, variable: HostName, x: int, y: int) -> Symbol:
        """Return the symbol that a PE exports under the host's name."""
        image = self.image_at(x, y)
        symbol = dict(image.exported_symbols).get(variable.name)
        if symbol is None:
            raise error(
                "host-symbol-missing",
                f"{image.name} on PE ({x}, {y}) exports nothing as {variable.name!r}",
                help=f'add @export_symbol(..., "{variable.name}") to its comptime block',
            )
        return self.symbol(symbol, x, y)

    def symbol_at(self, x: int, y: int, address: int) -> Symbol | None:
        """Return the symbol that holds a word of a PE's memory; None where none does."""
        inside = (s for s in self.image_at(x, y).symbols if 0 <= address - s.address < s.num_words)
        return next(inside, None)

    def symbol(self, name: str, x: int, y: int) -> Symbol:
        """Return the symbol of that name in a PE's memory."""
        image = self.image_at(x, y)
        for symbol in image.symbols:
            if symbol.name == name:
                return symbol
        raise error(
            "symbol-unknown",
            f"PE ({x}, {y}) has no symbol {name!r}",
            notes=(f"it runs {image.name}",),
            help=did_you_mean(name, [symbol.name for symbol in image.symbols])
            or "declare it with `export var`",
        )


def is_pointer(variable: HostName, symbol: Symbol) -> bool:
    """Whether the exported variable holds the address of the data, not the data."""
    return variable.type.startswith(("[*]", "*")) and not symbol.shape


def check_in_memory(name: str, address: int, num_words: int) -> None:
    """Raise OpenwaferError unless the words lie in a PE's memory."""
    if address == 0:
        raise _outside(f"{name} is a null pointer", "set the pointer before the host copies")
    if address + num_words > MEMORY_WORDS:
        raise _outside(
            f"{num_words} words of {name} at word {address} end behind the {MEMORY_WORDS} words "
            "of a PE's memory",
            "copy fewer elements",
        )


def _outside(message: str, help: str) -> OpenwaferError:
    return error("host-outside-memory", message, help=help)
