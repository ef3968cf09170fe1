"""A weight that two stages use: its gradients go to the stage that has it, its values come back.

In one process the gradients of the two uses of a micro-batch are added first, and that sum to those
of the micro-batches before. The later stage runs a micro-batch backward first; so the gradient of
its use waits for the other where that one is made.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from openwafer.training.collectives.group import Group, Pending
from openwafer.training.stream.stages.stage_plan import StagePlan


class _Tied(NamedTuple):
    """A weight, the number of its messages, and the stages that have it and that borrow it."""

    tag: int
    name: str
    owner: int
    user: int


class TiedWeights:
    """The tied weights of one stage.

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
