"""One stage in several replicas of a pipeline: its gradients are added over them, in one order.

Each replica has a block of neighbours among the micro-batches of a step. The running sum goes from
one replica to the next, and each adds its micro-batches one by one, so that the sum is that of a
loop on one device. It ends in the first replica, which alone has optimizer states; the weights that
come of it go to the others.
"""

from collections.abc import Mapping

import torch

from openwafer.training.collectives.broadcasts import Broadcasts
from openwafer.training.collectives.group import FIRST_RANK
from openwafer.training.collectives.ordered_sums import OrderedSums
from openwafer.training.store.layout import Part, RecordLayout, laid_out_like
from openwafer.training.store.parameter_store import Loan
from openwafer.training.stream.replicas.replica_link import Replicas


class StageReplicas:
    """The replicas of one stage, as one of them sees them.

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
