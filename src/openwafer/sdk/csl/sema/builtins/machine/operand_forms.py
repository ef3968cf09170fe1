"""Which kinds of operands the vendor's documentation lists for each vector operation."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.values import Loaded

_KINDS: Final = MappingProxyType({"d": "DSD", "p": "pointer", "v": "scalar"})
_MOVES: Final = ("dd", "pd", "dv")
_CHANGES: Final = ("dd", "dv")
_TO_INTEGERS: Final = ("dd", "dv", "pv")
_INTEGERS: Final = ("ddd", "dvd", "ddv")
_FLOATS: Final = (*_INTEGERS, "pvd")
_FORMS: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        **dict.fromkeys(("mov16", "mov32", "fmovh", "fmovs"), _MOVES),
        **dict.fromkeys(("clz", "ctz", "popcnt", "fabsh", "fabss", "fnegh", "fnegs"), _CHANGES),
        **dict.fromkeys(("fh2s", "fs2h", "xp162fh", "xp162fs"), _CHANGES),
        **dict.fromkeys(("fh2xp16", "fs2xp16"), _TO_INTEGERS),
        **dict.fromkeys(("add16", "and16", "or16", "xor16", "sll16", "slr16", "sar16"), _INTEGERS),
        "sub16": ("ddd", "ddv"),
        **dict.fromkeys(("faddh", "fadds", "faddhs", "fsubh", "fsubs"), _FLOATS),
        **dict.fromkeys(("fmulh", "fmuls", "fmaxh", "fmaxs"), _FLOATS),
        **dict.fromkeys(("fmach", "fmacs", "fmachs"), ("dddv",)),
        **dict.fromkeys(("fscaleh", "fscales"), ("pvv",)),
    }
)
"""By operation; a register and a FIFO stand where a DSD does."""


def check_form(sema: Sema, call: ast.BuiltinCall, operands: Sequence[Loaded]) -> None:
    """Say where operands are of kinds that the documentation does not list with each other."""
    name = call.name.text
    form = "".join(map(_kind, operands))
    known = _FORMS[name]
    if form not in known:
        sema.forbid(
            "operand-form",
            f"the documentation has no @{name} of {_spelled(form)}",
            call.span,
            f"it has: {'; '.join(map(_spelled, known))}",
        )


def _kind(operand: Loaded) -> str:
    if operand.type in t.DSDS | t.DSRS | {t.FIFO}:
        return "d"
    return "p" if isinstance(operand.type, t.Pointer) else "v"


def _spelled(form: str) -> str:
    return ", ".join(_KINDS[letter] for letter in form)
