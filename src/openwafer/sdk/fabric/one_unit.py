# ruff: noqa: SLF001  (numba lets nobody choose the kind of its libraries)
"""Compile functions that only call each other in one go.

numba optimizes each function and makes machine code of it, with all that it calls, before it turns
to the caller. Of the simulator's functions Python calls only the outermost one, so that is done
once, for all of them together.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.codegen import JITCodeLibrary

from openwafer.sdk.fabric.compiled import APART


class PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function that is only a part of others': not optimized, not made runnable."""

    def finalize(self) -> None:
        """Nothing: the whole does it."""
        self._raise_if_finalized()
        self._finalized = True

    def _optimize_functions(self, _module: Any) -> None:
        """Nothing: the whole does that, too."""

    def get_pointer_to_function(self, _name: str) -> int:
        """None, since it cannot run."""
        return 0

    @property
    def codegen(self) -> Any:
        """What binds Python objects to machine code, of which there is none."""
        return self

    def set_env(self, _name: str, _environment: object) -> None:
        """Nothing."""

    def closure(self) -> list[Any]:
        """This library and all that it needs."""
        found: dict[Any, None] = {}
        pending: list[Any] = [self]
        while pending:
            library = pending.pop()
            if library not in found:
                found[library] = None
                pending += library._linking_libraries if isinstance(library, PartLibrary) else []
        return list(found)


class WholeLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of an outermost function together with all parts."""

    def add_linking_library(self, library: Any) -> None:
        """Take over a part and what it needs."""
        own = library.closure() if isinstance(library, PartLibrary) else [library]
        self._linking_libraries += [part for part in own if part not in self._linking_libraries]

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            # A function that only this module has can go into its only caller whatever its size.
            if function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
            if any(name in function.name for name in APART) and not function.is_declaration:
                function.add_function_attribute("noinline")
        super()._optimize_final_module()


@contextmanager
def as_one_unit(outermost: Any) -> Iterator[None]:
    """While an outermost function is compiled: its callees become parts of it."""
    codegen = outermost.targetdescr.target_context.codegen()
    name = outermost.py_func.__qualname__
    before = codegen._library_class

    def library(own: Any, of: str) -> Any:
        return WholeLibrary(own, of) if of == name else PartLibrary(own, of)

    library._unserialize = before._unserialize  # type: ignore[attr-defined]
    codegen._library_class = library
    try:
        yield
    finally:
        codegen._library_class = before
