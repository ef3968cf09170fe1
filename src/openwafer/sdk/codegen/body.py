"""Writing LLVM text: lines of a function with fresh names, and the spelling of types and values."""

from typing import Final

from openwafer.sdk.ir.function import Constant, Type
from openwafer.sdk.ir.numbers import WIDTHS

_TYPES: Final[dict[Type, str]] = {
    **{kind: f"i{width}" for kind, width in WIDTHS.items()},
    Type.VOID: "void",
    Type.F32: "float",
    Type.DSD: "<8 x i16>",
    Type.DSD4: "<16 x i16>",
}


def llvm_type(kind: Type) -> str:
    """LLVM's type of a value: 16-bit floats are held as their bits."""
    return _TYPES[kind]


def constant(value: Constant) -> str:
    """An immediate."""
    if isinstance(value.value, tuple):
        return "<" + ", ".join(f"i16 {word}" for word in value.value) + ">"
    bits = value.value & ((1 << WIDTHS[value.type]) - 1)
    return f"bitcast (i32 {bits} to float)" if value.type is Type.F32 else str(bits)


def zero(kind: Type) -> str:
    """The value whose bits are all zero."""
    return "0.0" if kind is Type.F32 else "zeroinitializer" if WIDTHS[kind] > 64 else "0"


class Body:
    """Lines of one function; the block that is being written is the last one begun."""

    def __init__(self, signature: str) -> None:
        self._lines = [f"{signature} {{"]
        self._allocas: list[str] = []
        self._next = 0
        self._entry_end = 1

    def begin_entry(self) -> None:
        """Start the entry block; variables are made in it."""
        self._lines.append("entry:")
        self._entry_end = len(self._lines)

    def variable(self, llvm: str) -> str:
        """Address of a new variable."""
        name = f"%s{self._fresh()}"
        self._allocas.append(f"  {name} = alloca {llvm}")
        return name

    def value(self, expression: str) -> str:
        """Name of the value of an expression."""
        name = f"%v{self._fresh()}"
        self._lines.append(f"  {name} = {expression}")
        return name

    def do(self, statement: str) -> None:
        """Add a statement without a value."""
        self._lines.append(f"  {statement}")

    def fresh_label(self) -> str:
        """A label that no other block has."""
        return f"l{self._fresh()}"

    def begin(self, label: str) -> None:
        """Start a block."""
        self._lines.append(f"{label}:")

    def jump(self, label: str) -> None:
        """End the block; go on there."""
        self.do(f"br label %{label}")

    def branch(self, condition: str, then: str, otherwise: str) -> None:
        """End the block; go on there or there."""
        self.do(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def select(self, condition: str, llvm: str, first: str, second: str) -> str:
        """One of two values."""
        return self.value(f"select i1 {condition}, {llvm} {first}, {llvm} {second}")

    def text(self) -> str:
        """The whole function."""
        lines = [*self._lines[: self._entry_end], *self._allocas, *self._lines[self._entry_end :]]
        return "\n".join([*lines, "}", ""])

    def _fresh(self) -> int:
        self._next += 1
        return self._next
