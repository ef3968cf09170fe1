"""Ranks that compute the experts they own for all of them: rows travel, and weights stay.

A rank sends the rows that are routed to another one's experts there and goes on with what comes
back; so does its backward with gradients. Its own weights lie in host memory while a pass needs
them, and their gradients go to its own store. Where somebody watches the gradients of whole
weights, as a norm has to, those of a weight come to one rank for that.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from openwafer.training.collectives.group import Group, Pending
from openwafer.training.collectives.row_exchange import Asked, RowCall, RowExchange, Width
from openwafer.training.store.layout import Part, slice_name
from openwafer.training.store.lending import Loan
from openwafer.training.stream.forms.expert_modules import DOWN, UP, ExpertModule
from openwafer.training.stream.forms.weight_form import Operator
from openwafer.training.stream.link.store_link import StoreLink
from openwafer.training.stream.replicas.owned_experts import Gradients, OwnedExperts
from openwafer.training.stream.schedule import UpdateTiming

THREAD: Final = "experts"


class ExpertLink:
    """See the module's description. Compute's own thread calls everything.

    Args:
        group: the ranks; nobody else sends in it.
        modules: all modules of experts, in an order that all ranks know.
        owners: the rank of each slice, by name.
        own: over this rank's own records.
        casting: makes the context that forwards, and nothing else, run in.
    """

    def __init__(
        self,
        group: Group,
        modules: Mapping[str, ExpertModule],
        owners: Mapping[str, int],
        own: StoreLink,
        casting: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._rank, self._size, self._own = group.rank, group.size, own
        self._modules = tuple(modules.values())
        self._numbers = {path: number for number, path in enumerate(modules)}
        self._owned = [_dealt(module, owners, group.size) for module in self._modules]
        mine = [ranges[self._rank] for ranges in self._owned]
        self._experts = OwnedExperts(self._modules, mine, self._size, casting)
        most_sizes = max(len(owned) for ranges in self._owned for owned in ranges)
        self._exchange = RowExchange(group, most_sizes, self._width_of, self._answer)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=THREAD)
        self._loans: dict[str, Loan] = {}
        self._waiting: list[Gradients] = []
        self._num_calls = 0
        # Modules whose backward this rank is in.
        self._entered: set[str] = set()

    # A pass.

    def begin_pass(self) -> None:
        """All ranks begin a pass with gradients: its weights are brought up to date, and lent."""
        self._num_calls = 0
        self._experts.begin()
        with self._own.host_section():
            for slices in self._slices():
                self._loans |= {name: self._own.hold(name) for name in slices}
        self._experts.weights = {
            name: loan.tensor(name, Part.WEIGHTS) for name, loan in self._loans.items()
        }
        self._exchange.begin()

    def _slices(self) -> list[list[str]]:
        """Those that this rank owns, by module."""
        return [
            [name for attribute in (UP, DOWN) for name in self._experts.slices(number, attribute)]
            for number in range(len(self._modules))
        ]

    def advance(self) -> None:
        """Push the gradients that are complete by now."""
        self._exchange.check()
        while not self._experts.ready.empty():
            self._take(self._experts.ready.get())

    def end_pass(self) -> None:
        """Return when no rank needs anything of another one's experts in this pass.

        Raises:
            OpenwaferError: ``rank-lost``.
        """
        for path in tuple(self._entered):
            self.leave(path)
        self._exchange.finish()
        self._thread.submit(self._experts.end).result()
        self.advance()
        self._show_and_push()
        self._give_back(list(self._loans))

    def abandon(self) -> None:
        """Forget the pass."""
        self._exchange.abandon()
        self._entered.clear()
        self._waiting.clear()
        self._thread.submit(self._experts.begin).result()
        self._give_back(list(self._loans))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    # Rows.

    def forward(
        self,
        path: str,
        operator: Operator,
        rows: Tensor,
        sizes: Sequence[int],
        micro_batch: int | None,
    ) -> tuple[Tensor, RowCall]:
        """The products of rows with their experts, and the call to which a backward refers.

        Args:
            path: of the module.
            operator: that multiplies rows by weights.
            rows: contiguous, in host memory, in the order of the experts.
            sizes: rows of each expert.
            micro_batch: of this rank; ``None`` runs a layer again, without another backward.
        """
        self._num_calls += 1
        call = RowCall(
            Asked.AGAIN if micro_batch is None else Asked.FORWARD,
            self._numbers[path],
            self._num_calls,
            micro_batch or 0,
            operator.number,
            tuple(sizes),
        )
        return self._ask_all(call, rows), call

    def backward(self, forward: RowCall, gradients: Tensor) -> Tensor:
        """The gradients of a call's rows, given those of its products."""
        call = RowCall(Asked.BACKWARD, forward.module, forward.call, sizes=forward.sizes)
        self._entered.add(self._modules[call.module].path)
        return self._ask_all(call, gradients)

    def leave(self, path: str) -> None:
        """The backward of this rank has left a module behind."""
        self._entered.discard(path)
        call = RowCall(Asked.LEAVE, self._numbers[path])
        self._exchange.tell(call)
        self._answer(self._rank, call, torch.empty(0))

    @property
    def entered(self) -> frozenset[str]:
        """Modules that the backward has come to and not left."""
        return frozenset(self._entered)

    def _ask_all(self, call: RowCall, rows: Tensor) -> Tensor:
        """What all owners make of rows, each of those of its experts."""
        width = self._width_of(call)
        answers = rows.new_empty(len(rows), width.answered)
        ranges = self._owned[call.module]
        calls = [_for_owner(call, owned) for owned in ranges]
        num_rows = [one.num_rows for one in calls]
        parts = list(zip(calls, rows.split(num_rows), answers.split(num_rows), strict=True))
        under_way: list[Pending] = []
        for rank, (one, given, taken) in enumerate(parts):
            # A forward without rows leaves nothing for its backward, which says so.
            if rank != self._rank and (one.num_rows or call.asked is Asked.BACKWARD):
                under_way += self._exchange.ask(rank, one, given, taken)
        own, given, taken = parts[self._rank]
        taken.copy_(self._answer(self._rank, own, given))
        for message in under_way:
            message.wait()
        return answers

    def _answer(self, rank: int, call: RowCall, rows: Tensor) -> Tensor:
        with torch.no_grad():
            return self._thread.submit(self._experts.answer, rank, call, rows.detach()).result()

    def _width_of(self, call: RowCall) -> Width:
        module = self._modules[call.module]
        ends = module.width_in, module.width_out
        asked, answered = ends[::-1] if call.asked is Asked.BACKWARD else ends
        return Width(asked, answered, module.dtype)

    # Gradients.

    def _take(self, ready: Gradients) -> None:
        self._give_back(self._slices()[ready.module])
        if not ready.by_slice:
            return
        # Where updates wait for the whole step, norms may decide about them.
        if self._own.timing is UpdateTiming.ON_FETCH:
            self._waiting.append(ready)
        else:
            self._push(ready)

    def _push(self, ready: Gradients) -> None:
        with self._own.host_section():
            for name, gradient in ready.by_slice.items():
                self._own.push_seen(name, gradient)

    def _show_and_push(self) -> None:
        """Show whole gradients to who watches, each on one rank, and push what was seen."""
        taker = 0
        for ready in sorted(self._waiting, key=lambda one: one.module):
            module = self._modules[ready.module]
            for attribute in module.trained:
                names = self._experts.slices(ready.module, attribute)
                self._show(ready, attribute, {name: ready.by_slice[name] for name in names}, taker)
                taker = (taker + 1) % self._size
        waiting, self._waiting = self._waiting, []
        for ready in waiting:
            self._push(ready)

    def _show(
        self, ready: Gradients, attribute: str, own: Mapping[str, Tensor | None], taker: int
    ) -> None:
        name = self._modules[ready.module].weight(attribute)
        with self._own.host_section(), torch.no_grad():
            like = self._own.store.layouts[next(iter(own))].parts[Part.WEIGHTS][0].spec.empty("cpu")
            parts = [like.new_zeros(like.shape) if part is None else part for part in own.values()]
            whole, places = like.new_empty(0), list[Tensor]()
            if taker == self._rank:
                ranges = self._owned[ready.module]
                whole = like.new_empty((sum(map(len, ranges)), *like.shape))
                places = list(whole.split([len(owned) for owned in ranges]))
            what = f"the gradient of its experts of {name!r}"
            self._exchange.collect(torch.stack(parts), taker, places, what)
            if taker == self._rank:
                self._own.show({name: whole})

    def _give_back(self, slices: Sequence[str]) -> None:
        for name in slices:
            if name in self._loans:
                self._experts.weights.pop(name, None)
                self._loans.pop(name).release()


def _dealt(module: ExpertModule, owners: Mapping[str, int], num_ranks: int) -> list[range]:
    """The experts of a module that each rank owns, which are neighbours."""
    from_up = [owners[slice_name(module.weight(UP), n)] for n in range(module.num_experts)]
    starts = [from_up.index(rank) for rank in range(num_ranks)]
    return [range(start, start + from_up.count(rank)) for rank, start in enumerate(starts)]


def _for_owner(call: RowCall, owned: range) -> RowCall:
    return replace(call, sizes=call.sizes[owned.start : owned.stop])
