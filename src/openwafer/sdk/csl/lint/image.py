"""The lints of the code of a PE, in the order in which they warn."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeAlias

from openwafer.diagnostics import Diagnostic
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.lint.checked import CheckedImage
from openwafer.sdk.csl.lint.in_flight import shared_inputs, shared_microthreads
from openwafer.sdk.csl.lint.queues import contradicted_queues, reserved_ids, shared_queues
from openwafer.sdk.csl.lint.registers import ignored_options, vain_loads, whole_registers
from openwafer.sdk.csl.lint.values import (
    clock_never_enabled,
    constants_written,
    moves_of_nothing,
    pointers_never_set,
    unset_variables,
)
from openwafer.sdk.csl.sema.image import ImageResult

Lint: TypeAlias = Callable[[CheckedImage], Iterator[Diagnostic]]
LINTS: Final[tuple[Lint, ...]] = (
    unset_variables,
    shared_microthreads,
    shared_inputs,
    vain_loads,
    reserved_ids,
    contradicted_queues,
    constants_written,
    moves_of_nothing,
    whole_registers,
    clock_never_enabled,
    pointers_never_set,
    ignored_options,
    shared_queues,
)


def linted(result: ImageResult, arch: Arch) -> ImageResult:
    """An analysed image with the warnings of all lints behind those of its analysis."""
    image = CheckedImage(result.state, arch)
    found = (one for lint in LINTS for one in lint(image))
    return replace(result, warnings=tuple(dict.fromkeys((*result.warnings, *found))))
