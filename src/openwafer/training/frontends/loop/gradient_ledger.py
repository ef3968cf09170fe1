"""What a plain loop would find in ``parameter.grad``, while the gradients are in the store."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.frontends.loop.loop_records import LoopRecords
from openwafer.training.step.gradients import kept_norms
from openwafer.training.store.layout import Part
from openwafer.training.store.record_access import Arrays
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.torch_private import graph_task_id


class GradientLedger:
    """Follows the gradients of a loop, which outlive the update until somebody zeroes them.

    Args:
        execution: runs the model.
        records: keep gradients until a step is completed.
        names: of the parameters of each optimizer.

    Attributes:
        looks_empty: whether code runs that may look and is to find nothing, as an optimizer's step.
    """

    def __init__(
        self,
        execution: StreamedExecution,
        records: LoopRecords,
        names: Mapping[Optimizer, Sequence[str]],
    ) -> None:
        self.looks_empty = False
        self._execution = execution
        self._records = records
        self._record_of = execution.executor.split.record_of
        self._names = {optimizer: frozenset(held) for optimizer, held in names.items()}
        self._trained = frozenset().union(*self._names.values())
        # Gradients that were applied, and whose bytes are still in the store.
        self._applied: set[str] = set()
        self._zeros: set[str] = set()
        # Gradients to which the updates of the last step write, which may be still to be made.
        self._spent: set[str] = set()
        # What gradients in the store are still to be multiplied by: a clip costs no write.
        self._factors: dict[str, float] = {}
        self._stepped: set[Optimizer] = set()
        execution.watch_gradients(self.note)

    @property
    def names(self) -> set[str]:
        """Parameters that have a gradient."""
        return self._records.kept | self._applied | self._zeros

    def has_gradient(self, name: str) -> bool:
        """Whether a plain loop would find a gradient."""
        if self.looks_empty:
            return False
        if graph_task_id() != -1:
            raise error(
                "streamed-gradient-read",
                f"the gradient of {name!r} is asked for while the backward pass runs, and what of "
                "it has come is on its way into the parameter store",
                help="read gradients after backward, or from the argument of a hook made with "
                "parameter.register_hook",
            )
        self.collect()
        return self._records.is_kept(name) or name in self._applied or name in self._zeros

    def collect(self) -> None:
        """Take up what a backward pass that failed has left in parameters."""
        if self._execution.executor.gradients.begun:
            self._execution.end_open_pass()

    # Values.

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and copies of all gradients, record by record."""
        wanted = self.names
        for record, names in self._execution.executor.split.records.items():
            held = [name for name in names if name in wanted]
            self._let_written(held)
            if held:
                with self._records.lent_in_pass(record, Part.GRADIENTS) as loan:
                    yield from [(name, self._copy(loan, name)) for name in held]

    def norms(self, norm_type: float) -> dict[str, torch.Tensor]:
        """Norms of all gradients by name, each taken where it is; zeros are in the store."""
        names, norm_dtype = self.names, self._execution.updater.norm_dtype
        self._let_written(names)
        factors = {name: self._factors.get(name, 1.0) for name in names}
        of_others = self._records.ask_norms(factors, norm_type)
        own: dict[str, torch.Tensor] = {}
        for record, held in self._execution.executor.split.records.items():
            here = {n: factors[n] for n in held if n in factors and self._records.is_here(n)}
            if here:
                with self._records.lent_in_pass(record, Part.GRADIENTS) as loan:
                    own |= kept_norms(loan, here, norm_type, norm_dtype)
        return own | of_others()

    def read(self, name: str) -> torch.Tensor:
        """A copy of a gradient, on the device."""
        self._let_written({name})
        device = self._execution.device.torch_device
        with self._records.lent_in_pass(self._record_of[name], Part.GRADIENTS) as loan:
            return self._copy(loan, name).to(device)

    def _copy(self, loan: Arrays, name: str) -> torch.Tensor:
        gradient = loan.tensor(name, Part.GRADIENTS).clone()
        if name in self._zeros:
            return gradient.zero_()
        return gradient.mul_(self._factors.get(name, 1.0))

    def write(self, name: str, gradient: torch.Tensor) -> None:
        """Give a parameter another gradient."""
        record = self._record_of[name]
        places = self._records.layouts[record].parts[Part.GRADIENTS]
        if all(place.spec.name != name for place in places):
            raise error(
                "gradient-without-room",
                f"{name!r} did not require a gradient when the run was planned, so that there is "
                "no room for one",
                help="call streamed.close(), unfreeze, and stream the model anew",
            )
        self._recall()
        self._records.write_gradient(name, gradient)
        self._factors.pop(name, None)
        self._zeros.discard(name)

    def scale(self, name: str, factor: float) -> bool:
        """Multiply a gradient when it is applied or read; whether that is as good as at once."""
        if self._execution.updater.keeps_masters:
            # A bf16 gradient would be rounded; on its way to an fp32 master it is not.
            return False
        self.multiply((name,), factor)
        return True

    def multiply(self, names: Iterable[str], factor: float) -> None:
        """Multiply gradients when they are applied or read."""
        self._recall()
        if factor != 1.0:
            self._write_factors(names)
            self._factors.update(dict.fromkeys(names, factor))

    def unscale(self, optimizer: Optimizer, scale: float) -> None:
        """Divide the gradients of an optimizer by the scale of its loss."""
        held = self._names[optimizer] & self._records.kept
        if math.frexp(scale)[0] == 0.5:
            # The quotient by a power of two is the product with its inverse, bit for bit.
            self.multiply(held, 1.0 / scale)
        else:
            for name in held:
                self.write(name, self.read(name).div_(scale))

    def refuse_second_clip(self) -> None:
        """Raise ``clipped-twice`` where gradients of the step under way are to be multiplied."""
        is_clipped = any(name not in self._applied for name in self._factors)
        if self._execution.updater.keeps_masters and is_clipped:
            raise error(
                "clipped-twice",
                "the gradients of this step are clipped already, and fp32 masters are updated by "
                "gradients that are multiplied once",
                help="call streamed.clip_grad_norm_ once between backward and optimizer.step()",
            )

    def _write_factors(self, names: Iterable[str]) -> None:
        by_record: dict[str, list[str]] = {}
        for name in self._factors.keys() & names:
            by_record.setdefault(self._record_of[name], []).append(name)
        for record, held in by_record.items():
            lent = self._records.lent_in_pass(record, Part.GRADIENTS, changes=True)
            with lent as loan, torch.no_grad():
                for name in held:
                    loan.tensor(name, Part.GRADIENTS).mul_(self._factors.pop(name))

    def _recall(self) -> None:
        """Let gradients that were applied be as those that were not; no update is due then."""
        self._records.flush()
        self._records.keep(self._applied)
        self._applied.clear()

    def _written_by_steps(self) -> set[str]:
        updater = self._execution.updater
        # Masters have gradients of their own, in fp32, of which nothing is kept.
        writing = () if updater.keeps_masters else filter(updater.writes_gradients, self._names)
        return set().union(*(self._names[optimizer] for optimizer in writing))

    def _let_written(self, names: Iterable[str]) -> None:
        """Let the updates be made that write to these gradients."""
        if not self._spent.isdisjoint(names):
            self._records.flush()
            self._spent.clear()

    # What the loop does.

    def forget(self, name: str) -> None:
        """``parameter.grad = None``."""
        self._records.discard({name})
        self._applied.discard(name)
        self._spent.discard(name)
        self._zeros.discard(name)
        self._factors.pop(name, None)

    def zeroed_by(self, optimizer: Optimizer | None) -> set[str]:
        """Parameters whose gradients ``zero_grad`` of an optimizer, or of the model, zeroes."""
        return self.names & (self.names if optimizer is None else self._names[optimizer])

    def zero(self, names: Iterable[str], *, leaves_zeros: bool) -> None:
        """``zero_grad``."""
        zeroed = set(names)
        self._records.discard(zeroed)
        self._applied -= zeroed
        self._spent -= zeroed
        self._zeros = self._zeros | zeroed if leaves_zeros else self._zeros - zeroed
        for name in self._factors.keys() & zeroed:
            del self._factors[name]

    def begin_backward(self) -> None:
        """Gradients of before are in the store when others come to be added to them."""
        self.looks_empty = False
        self._recall()
        if self._factors and self._execution.updater.keeps_masters:
            raise error(
                "gradient-after-clip",
                "a backward has come after the gradients of this step were clipped, and fp32 "
                "masters are updated by gradients that are multiplied once",
                help="call clip_grad_norm_ after the last backward of a step",
            )
        self._write_factors(tuple(self._factors))

    def note(self, gradients: Collection[str]) -> None:
        """Gradients of these parameters have come."""
        self._zeros.difference_update(gradients)
        if self._stepped:
            raise error(
                "optimizers-apart",
                f"{len(self._stepped)} of {len(self._names)} optimizers have taken the step when "
                "the next backward came",
                help="step all optimizers of a model after its backward, or make models of its "
                "parts that are streamed each with its own optimizer",
            )

    def fill_zeros(self) -> None:
        """Gradients of zeros that ``zero_grad`` left are gradients like others from now on."""
        for name in sorted(self._zeros):
            parameter = self._execution.executor.weights.parameters[name]
            self.write(name, torch.zeros(parameter.shape, dtype=parameter.dtype))

    def step(self, optimizer: Optimizer) -> None:
        """Complete a step with the last of its optimizers."""
        self._stepped.add(optimizer)
        if len(self._stepped) < len(self._names):
            return
        self._stepped.clear()
        self._recall()
        self.fill_zeros()
        kept = self._records.kept
        if kept:
            self._spent = kept & self._written_by_steps()
            factors = {self._factors.get(name, 1.0) for name in kept & self._trained}
            if len(factors) > 1 or self._spent:
                self._write_factors(kept)
                factors.clear()
            self._records.complete_step(factors.pop() if factors else 1.0)
            self._applied = kept
            # Fused kernels write without counting versions up, so that a plain loop goes on.
            counted = () if optimizer.defaults.get("fused") else kept
            self._execution.executor.weights.note_update(self._record_of[name] for name in counted)
