"""What a plain loop would find in ``parameter.grad``, while the gradients are in the store."""

from collections.abc import Mapping, Sequence

import torch
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.stream.execute.execution import StreamedExecution


class GradientLedger:
    """Follows the gradients of a loop from backward to the update, and refuses what differs.

    The store applies a step's gradients once and keeps none of them. A loop that would see them
    again, because it does not zero them, is told so instead of being computed otherwise.

    Args:
        execution: keeps gradients until a step is completed.
        names: of the parameters of each optimizer.

    Attributes:
        coefficient: by which the step under way is clipped; ``None`` until it is.
        is_stepping: whether an optimizer's own step runs, which may look and finds nothing.
    """

    def __init__(
        self, execution: StreamedExecution, names: Mapping[Optimizer, Sequence[str]]
    ) -> None:
        self.coefficient: float | None = None
        self.is_stepping = False
        self._execution = execution
        self._names = {optimizer: frozenset(held) for optimizer, held in names.items()}
        self._trained = frozenset().union(*self._names.values())
        self._applied: set[str] = set()
        self._zeros: set[str] = set()
        self._stepped: set[Optimizer] = set()
        # Applied gradients to which a later backward has added.
        self._mixed: set[str] = set()
        execution.watch_gradients(self._note)

    def check_read(self, name: str) -> None:
        """Raise ``streamed-gradient-read`` where a plain loop would find a gradient."""
        record = self._execution.executor.split.record_of[name]
        is_kept = self._execution.link.keeps_gradient(record, name)
        if self.is_stepping or not (is_kept or name in self._applied):
            return
        raise error(
            "streamed-gradient-read",
            "the gradients of this step are in the parameter store, not in parameter.grad",
            help="clip with streamed.clip_grad_norm_(max_norm); read them with "
            "streamed.gradients(); for fp16 with a loss scale, which GradScaler cannot do here, "
            "take openwafer.Session",
        )

    def forget(self, name: str) -> None:
        """``parameter.grad = None``."""
        self._execution.link.discard_gradients({name})
        for names in (self._applied, self._mixed, self._zeros):
            names.discard(name)

    def zero(self, optimizer: Optimizer | None, *, leaves_zeros: bool) -> None:
        """``zero_grad`` of an optimizer or, for ``None``, of the model."""
        link = self._execution.link
        names = self._trained | link.kept_names if optimizer is None else self._names[optimizer]
        had = (link.kept_names | self._applied) & names
        self._zeros = self._zeros | had if leaves_zeros else self._zeros - names
        link.discard_gradients(names)
        self._applied -= names
        self._mixed -= names
        self.coefficient = None

    def _note(self, gradients: Mapping[str, torch.Tensor]) -> None:
        self._mixed |= self._applied.intersection(gradients)
        if self.coefficient is not None:
            raise error(
                "gradient-after-clip",
                f"a gradient of {next(iter(gradients))!r} arrived after the step's were clipped",
                help="call clip_grad_norm_ after the last backward of a step",
            )
        if self._stepped:
            raise error(
                "optimizers-apart",
                f"{len(self._stepped)} of {len(self._names)} optimizers have taken the step when "
                "the next backward came",
                help="step all optimizers of a model after its backward, or make models of its "
                "parts that are streamed each with its own optimizer",
            )

    def step(self, optimizer: Optimizer) -> None:
        """Complete a step with the last of its optimizers."""
        self._stepped.add(optimizer)
        if len(self._stepped) < len(self._names):
            return
        self._stepped.clear()
        kept = self._execution.link.kept_names
        self._check_step(kept)
        if kept:
            self._execution.complete_step(1.0 if self.coefficient is None else self.coefficient)
            self._applied |= kept & self._trained
        self.coefficient = None

    def check_sums(self) -> None:
        """Raise ``gradient-not-zeroed`` where a plain loop has summed gradients of two steps."""
        if self._mixed:
            raise error(
                "gradient-not-zeroed",
                f"the gradient of {min(self._mixed)!r} was applied and not zeroed, and a backward "
                "has added to it",
                help="call optimizer.zero_grad() between optimizer.step() and the next backward",
            )

    def _check_step(self, kept: set[str]) -> None:
        self.check_sums()
        missing = sorted(self._zeros - kept)
        if missing:
            raise error(
                "zero-gradients",
                f"{missing[0]!r} got no gradient in this step, and zero_grad(set_to_none=False) "
                "left it one of zeros, by which a plain loop would update it",
                help="call optimizer.zero_grad(), which sets gradients to None",
            )
        if not kept and self._applied:
            raise error(
                "step-without-gradients",
                f"the gradients of {len(self._applied)} parameters were applied before and are "
                "not kept to be applied again",
                help="call backward between two optimizer steps",
            )
