"""What scripts tell the vendor's compiler of single operations: taken, and read by nothing.

A function that is annotated is the function itself. The models of the Model Zoo import these names
from ``cerebras.pytorch.core.annotation``, ``.lib``, ``.utils.kernel``, ``.utils.num_kv_groups`` and
``.utils.utils``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

from torch import nn

__all__ = [
    "AnnotationMode",
    "FilterCallable",
    "cerebras_pytorch_lib",
    "create_annotation",
    "current_pol",
    "groups_annotater",
    "kernel_annotater",
    "make_param_filter",
    "pol",
]

Function = TypeVar("Function", bound=Callable[..., Any])
FilterCallable = Callable[[str, nn.Parameter], bool]


class AnnotationMode:
    """Names that annotations are made of."""

    @dataclass
    class Config:
        """Whether a forward and a backward are annotated; a script's subclass has more."""

        enable_fwd: bool
        enable_bwd: bool

    @dataclass
    class Attribute:
        """A name and its value."""

        name: str
        value: Any


def create_annotation(
    annotation_config: type[AnnotationMode.Config],
    get_attribute_fn: Callable[..., AnnotationMode.Attribute],
    **kwargs: Any,
) -> Callable[[Function], Function]:
    """A decorator that leaves a function as it is."""
    return _unchanged


def kernel_annotater(kernel: str | None = None) -> Callable[[Function], Function]:
    """As :func:`create_annotation`."""
    return _unchanged


def groups_annotater(num_kv_groups: int | None = None) -> Callable[[Function], Function]:
    """As :func:`create_annotation`."""
    return _unchanged


def pol(
    level: int | None = None, fwd_level: int | None = None, bwd_level: int | None = None
) -> Callable[[Function], Function]:
    """As :func:`create_annotation`."""
    return _unchanged


def current_pol() -> int:
    """How far formats may be narrowed for speed: 0, not at all."""
    return 0


def _unchanged(function: Function) -> Function:
    return function


def make_param_filter(param_filter: str | Sequence[str] | FilterCallable) -> FilterCallable:
    """A function of a parameter's whole name and the parameter, of globs or of such a function."""
    if callable(param_filter):
        return param_filter
    globs = [param_filter] if isinstance(param_filter, str) else list(param_filter)
    return lambda name, _: any(fnmatchcase(name, glob) for glob in globs)


class _CompilerLibrary:
    """The part of the compiler's library that models call."""

    def set_attribute(self, tensor: Any, name: str, value: Any) -> None:
        """Take a note of a tensor."""


cerebras_pytorch_lib: Final = _CompilerLibrary()
