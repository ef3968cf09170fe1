"""What a script has told of its one program: the model, the optimizers, the session it is in."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from torch import nn
from torch.optim import Optimizer

from openwafer.config import PathLike, Size
from openwafer.diagnostics import error
from openwafer.training.frontends.loop.loop import StreamedLoop
from openwafer.training.frontends.scripts.program import Room, ScriptProgram, kind_of

if TYPE_CHECKING:
    from openwafer.training.frontends.session.lr_scheduler import LearningRate
    from openwafer.training.frontends.session.session import Session

_CONVERSION: Final = "convert_state_dict_for_checkpoint"
"""Scripts ask each optimizer for it; the vendor's whose states are others have their own."""


@dataclass
class Program(ScriptProgram):
    """The program of a script; its model is that of ``cbtorch.module``.

    Attributes:
        optimizers: over the model's parameters.
        max_gradient_norm, loss_scale: of ``amp.GradScaler``; gradients are clipped to the first.
        session: the one that is open.
    """

    optimizers: list[Optimizer] = field(default_factory=list)
    max_gradient_norm: float | None = None
    loss_scale: float | str | None = None
    session: "Session | None" = None
    _rates: "dict[int, list[LearningRate]]" = field(default_factory=dict)

    def take_model(self, model: nn.Module) -> None:
        """Make a model the program's own.

        Raises:
            OpenwaferError: ``session-model`` for what is no module, ``session-second-model``.
        """
        if not isinstance(model, nn.Module):
            raise error(
                "session-model",
                f"cbtorch.module takes a torch.nn.Module, and got {kind_of(model)}",
                help="write model = cbtorch.module(model)",
            )
        if self.model is not None:
            which = "this" if self.model is model else "another"
            raise error(
                "session-second-model",
                f"cbtorch.module has {which} {type(self.model).__name__} already",
                notes=("a program has one model",),
                help="call it once, or begin a new program by cbtorch.initialize()",
            )
        self.model = model

    def take_optimizer(self, optimizer: Optimizer) -> None:
        """Let a session know an optimizer; one that it knows stays known once.

        Raises:
            OpenwaferError: ``session-optimizer`` for what is no optimizer.
        """
        if not isinstance(optimizer, Optimizer):
            raise error(
                "session-optimizer",
                f"cbtorch.optimizer takes an optimizer of torch, and got {kind_of(optimizer)}",
                help="write optimizer = cbtorch.optimizer(torch.optim.SGD(...))",
            )
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)
            # Where scripts look for the one that cbtorch.optimizer has wrapped.
            vars(optimizer).setdefault("_optimizer", optimizer)
            if not hasattr(optimizer, _CONVERSION):
                vars(optimizer)[_CONVERSION] = _as_it_is

    def rates_of(self, optimizer: Optimizer) -> "list[LearningRate]":
        """The learning rates that sessions set before an optimizer's steps, in their order."""
        return self._rates.setdefault(id(optimizer), [])

    def stream(self, *, is_training: bool) -> StreamedLoop:
        """Let the model's weights stream.

        Raises:
            OpenwaferError: ``session-without-model``, ``session-without-optimizer`` where it is to
                be trained, and what :func:`stream_weights` raises.
        """
        if self.model is None:
            raise error(
                "session-without-model",
                "a session begins, and there is no model",
                help="write model = cbtorch.module(model) before it",
            )
        if is_training and not self.optimizers:
            raise error(
                "session-without-optimizer",
                "a session is to train, and knows no optimizer",
                help="write optimizer = cbtorch.optimizer(optimizer) before it",
            )
        streamed = self.streamed(self.model, self.optimizers)
        if not is_training:
            streamed.begin_without_gradients()
        return streamed


def _as_it_is(state: dict[str, Any]) -> dict[str, Any]:
    return state


class _Process:
    program: Program | None = None


def begin(device_memory: Size | None, folder: PathLike | None) -> None:
    """Begin the program of this process; a session of the one before it must be over.

    Args:
        device_memory, folder: see :class:`Room`.

    Raises:
        OpenwaferError: ``argument-bytes`` for a size that is none, ``session-open``.
    """
    before = running()
    if before is not None and before.session is not None:
        raise error(
            "session-open",
            "cbtorch.initialize begins a new program, and a session of the one before is open",
            help="leave that session first",
        )
    _Process.program = Program(Room.of(device_memory, folder))


def end() -> None:
    """Forget the program of this process."""
    _Process.program = None


def running() -> Program | None:
    """The program of this process; None before ``cbtorch.initialize``."""
    return _Process.program


def current(caller: str) -> Program:
    """The program of this process.

    Args:
        caller: what asks for it, as the script wrote it.

    Raises:
        OpenwaferError: ``session-not-initialized``.
    """
    program = running()
    if program is None:
        raise error(
            "session-not-initialized",
            f"{caller} is called before cbtorch.initialize",
            help="write cbtorch.initialize() at the beginning",
        )
    return program
