"""Which colors the code of an image sends and reads, as far as its source says."""

from dataclasses import dataclass

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.csl.sema.machine_state import queues_of
from openwafer.sdk.ir.function import Module

_OF_ROUTES = frozenset(("write_register",))


@dataclass(frozen=True)
class Traffic:
    """Colors between the core of a PE and its router.

    Attributes:
        sent: that descriptors or queues of outputs name; None where run time chooses a color.
        read: the same of inputs, and of data tasks.
        is_configured: code writes configuration registers, and so may change routes and queues.
    """

    sent: frozenset[int] | None
    read: frozenset[int] | None
    is_configured: bool


def traffic_of(module: Module, state: ImageState, arch: Arch) -> Traffic:
    """The traffic of an analysed image."""
    machine = state.machine
    queues = queues_of(machine, arch)
    read = {binding.color for binding in queues.bindings if binding.is_input}
    read |= {*queues.sharing, *machine.queueless_colors}
    read |= {color for colors in machine.used_queues.values() for color in colors}
    sent = {binding.color for binding in queues.bindings if not binding.is_input}
    sent |= machine.sent_colors.keys()
    is_open = machine.has_open_color
    writes = any(
        one.op in _OF_ROUTES for every in module.functions.values() for one in every.instructions
    )
    return Traffic(
        None if is_open else frozenset(sent),
        None if is_open else frozenset(read),
        writes or bool(machine.registers),
    )
