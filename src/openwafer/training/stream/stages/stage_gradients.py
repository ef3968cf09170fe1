"""What becomes of a stage's gradients, and the weights that come of them.

Gradients of a weight that two stages use are added where the weight is; those of a stage in several
replicas of the pipeline, over the replicas.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from openwafer.training.collectives.broadcasts import Broadcasts
from openwafer.training.collectives.group import FIRST_RANK, Group, Pending
from openwafer.training.collectives.ordered_sums import OrderedSums
from openwafer.training.store.layout import Part, RecordLayout, laid_out_like
from openwafer.training.store.parameter_store import Loan
from openwafer.training.stream.replicas.ownership import StagePlan
from openwafer.training.stream.replicas.replica_link import Replicas


class _Tied(NamedTuple):
    """A weight, the number of its messages, and the stages that have it and that borrow it."""

    tag: int
    name: str
    owner: int
    user: int


class TiedWeights:
    """The weights that one stage shares with another one.

    Their gradients go to the stage that has them, their values come back. In one process the
    gradients of the two uses of a micro-batch are added first, and that sum to those of the
    micro-batches before. The later stage runs a micro-batch backward first; so the gradient of its
    use waits for the other where that one is made.

    Args:
        plan: of the stages.
        parameters: of the model, by name.
        group: the stages; nobody else sends in it meanwhile.
    """

    def __init__(
        self, plan: StagePlan, parameters: Mapping[str, torch.nn.Parameter], group: Group
    ) -> None:
        self._group = group
        # Both of a weight's stages number it alike.
        self._here = [
            _Tied(tag, name, owner, user)
            for tag, (name, (owner, user)) in enumerate(sorted(plan.tied.items()))
            if group.rank in (owner, user)
        ]
        self._trained = [one for one in self._here if parameters[one.name].requires_grad]
        self._parameters = {one.name: parameters[one.name] for one in self._here}
        self._before: dict[str, torch.Tensor | None] = {}
        self._sent: list[Pending] = []

    def begin_backward(self) -> None:
        """Set aside the sums of the micro-batches before."""
        for _, name, _, _ in self._trained:
            self._before[name] = self._parameters[name].grad
            self._parameters[name].grad = None

    def end_backward(self, micro_batch: int) -> None:
        """Add the gradients of a micro-batch where the weight is, or send them there."""
        for tag, name, owner, user in self._trained:
            own = self._parameters[name].grad
            assert own is not None
            what = f"the gradient of {name!r} in micro-batch {micro_batch}"
            if self._group.rank == user:
                self._parameters[name].grad = None
                self._sent.append(self._group.send(own.contiguous(), owner, tag, what))
                continue
            whole = torch.empty_like(own, memory_format=torch.contiguous_format)
            self._group.receive(whole, user, tag, what).wait()
            whole.add_(own)
            before = self._before[name]
            self._parameters[name].grad = whole if before is None else before.add_(whole)

    def end_pass(self) -> None:
        """All that was sent has arrived, and nothing more is to come."""
        for pending in self._sent:
            pending.wait()
        self._sent.clear()
        self._before.clear()

    def renew(self) -> None:
        """Bring the values of the weights to the stages that borrow them."""
        for tag, name, owner, user in self._here:
            what, values = f"the weight {name!r}", self._parameters[name].detach()
            if self._group.rank == owner:
                self._group.send(values.contiguous(), user, tag, what).wait()
            else:
                # It had no memory of its own until now.
                fresh = torch.empty(values.shape, dtype=values.dtype)
                self._group.receive(fresh, owner, tag, what).wait()
                self._parameters[name].data = fresh


class StageReplicas:
    """The replicas of one stage, as one of them sees them: gradients are added in one order.

    Each replica has a block of neighbours among the micro-batches of a step. The running sum goes
    from one replica to the next, and each adds its micro-batches one by one, so that the sum is
    that of a loop on one device. It ends in the first replica, which alone has optimizer states;
    the weights that come of it go to the others.

    Args:
        joined: the ranks that have the stage, in the order of their replicas.
        layouts, loans: of its records.
        parameters: of the model, by name.
    """

    def __init__(
        self,
        joined: Replicas,
        layouts: Mapping[str, RecordLayout],
        loans: Mapping[str, Loan],
        parameters: Mapping[str, torch.nn.Parameter],
    ) -> None:
        self._loans = loans
        self._is_first = joined.rank == FIRST_RANK
        trained = {
            record: {
                place.spec.name: parameters[place.spec.name]
                for place in layout.parts[Part.WEIGHTS]
                if parameters[place.spec.name].requires_grad
            }
            for record, layout in layouts.items()
        }
        self._trained = {record: named for record, named in trained.items() if named}
        owners = dict.fromkeys(layouts, FIRST_RANK)
        size = joined.chunk_bytes
        self._broadcasts = Broadcasts(joined.weights, tuple(layouts), owners, size)
        self._sums = OrderedSums(joined.gradients, self._trained, owners, size, joined.waits)
        self._parts: list[dict[str, torch.Tensor]] = []
        self._changed = tuple(layouts)

    def end_backward(self) -> None:
        """Keep the gradients of a micro-batch apart, but where there is no sum to wait for."""
        if not self._is_first:
            self._take()

    def _take(self) -> None:
        part = {}
        for named in self._trained.values():
            for name, parameter in named.items():
                if parameter.grad is not None:
                    part[name], parameter.grad = parameter.grad, None
        self._parts.append(part)

    def end_pass(self) -> None:
        """Add the gradients of all micro-batches; from here on the first replica alone has any."""
        if self._is_first:
            self._take()
        self._sums.begin()
        for record, named in self._trained.items():
            parts = [{n: part.pop(n) for n in named if n in part} for part in self._parts]
            self._sums.add(record, parts)
        self._parts.clear()
        for total in self._sums.finish():
            for name, gradient in total.tensors.items():
                parameter = self._trained[total.record][name]
                parameter.grad = laid_out_like(gradient, parameter)

    def renew(self) -> None:
        """Bring weights from the first replica to the others: all at first, then trained ones."""
        for record in self._changed:
            self._broadcasts.begin(record, self._loans[record].part_bytes_view(Part.WEIGHTS))
        for record in self._changed:
            self._broadcasts.wait(record)
        self._broadcasts.end_pass()
        self._changed = tuple(self._trained)

    def close(self) -> None:
        """End the threads."""
        self._sums.close()


@dataclass
class StageGradients:
    """The gradients of one stage, and the weights that come of them.

    Attributes:
        tied: weights that it shares with another stage.
        replicas: of the stage; ``None`` where there is one.
        are_weights_old: whether those of this system may be others than those that were updated.
    """

    tied: TiedWeights
    replicas: StageReplicas | None
    are_weights_old: bool = True

    def begin_backward(self) -> None:
        """The backward of a micro-batch begins."""
        self.tied.begin_backward()

    def end_backward(self, micro_batch: int) -> None:
        """The backward of a micro-batch has ended."""
        self.tied.end_backward(micro_batch)
        if self.replicas is not None:
            self.replicas.end_backward()

    def end_pass(self) -> None:
        """Those of all micro-batches are here; the systems that update have their sum then."""
        self.tied.end_pass()
        if self.replicas is not None:
            self.replicas.end_pass()

    def renew(self) -> None:
        """Bring new weights, where there are any, to all systems that compute with them."""
        if not self.are_weights_old:
            return
        if self.replicas is not None:
            self.replicas.renew()
        self.tied.renew()
        self.are_weights_old = False

    def close(self) -> None:
        """End the threads."""
        if self.replicas is not None:
            self.replicas.close()
