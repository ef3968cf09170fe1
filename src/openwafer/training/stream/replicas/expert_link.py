"""Ranks that compute the experts they own for all of them: rows travel, and weights stay.

A rank sends the rows that are routed to another one's experts there and goes on with what comes
back; so does its backward with gradients. Its own weights lie in host memory while a pass needs
them, and their gradients go to its own store. Where somebody watches the gradients of whole
weights, as a norm has to, those of a weight come to one rank for that.

The module's own code runs (:class:`ExpertCall`): it sorts rows by expert, weighs what comes back
and adds it up. Its first product gives it the rows themselves, its gate does nothing, and its
second product is made of the rows by the experts' owners (:class:`OwnedExperts`). So one exchange
carries a row there and its product back.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Final

import torch
from torch import Tensor, nn

from openwafer.diagnostics import error
from openwafer.training.collectives.exchange import (
    Asked,
    RowCall,
    RowExchange,
    Width,
    made_elsewhere,
)
from openwafer.training.collectives.group import Group, Pending
from openwafer.training.store.layout import Part, slice_name
from openwafer.training.store.lending import Loan
from openwafer.training.stream.forms.expert_modules import DOWN, GATE, UP, ExpertModule
from openwafer.training.stream.forms.weight_form import ByExpert, ExpertView, Operator
from openwafer.training.stream.link.store_link import StoreLink
from openwafer.training.stream.replicas.ownership import Ownership
from openwafer.training.stream.schedule import UpdateTiming


@dataclass(frozen=True)
class Gradients:
    """The gradients of a module's experts that a rank owns, over all micro-batches of a step.

    Attributes:
        module: its number.
        by_slice: by name; ``None`` is zeros that are nowhere. Empty where no micro-batch has any.
    """

    module: int
    by_slice: Mapping[str, Tensor | None]


@dataclass(frozen=True)
class _Computed:
    """The products of one call.

    Attributes:
        micro_batch: the rank and its micro-batch.
        rows, weights, products: of each expert that has rows; the weights with their slices.
    """

    micro_batch: tuple[int, int]
    rows: list[Tensor]
    weights: list[dict[str, Tensor]]
    products: list[Tensor]


@dataclass
class _ModulePass:
    """What a pass has made of one module so far.

    Attributes:
        calls: products that a backward may follow, by rank and call.
        parts: gradients by slice and micro-batch.
        num_uses, num_uses_of: calls that a backward followed, of all experts and of a slice.
        left: ranks whose backward has left it behind.
    """

    calls: dict[tuple[int, int], _Computed] = field(default_factory=dict)
    parts: dict[str, dict[tuple[int, int], Tensor]] = field(default_factory=dict)
    num_uses: int = 0
    num_uses_of: Counter[str] = field(default_factory=Counter)
    left: set[int] = field(default_factory=set)


class OwnedExperts:
    """The experts that one rank owns: what it computes with them, for itself and for other ranks.

    Rows come as they were routed, those of a micro-batch in one call, and each expert's products
    are those of the plain loop: the same operators on the same rows. Gradients of weights are kept
    apart for each micro-batch until all ranks have left the module behind, and then added in the
    order of the micro-batches, which is that of the ranks. One thread calls everything but
    :attr:`ready`'s ``get``.

    Args:
        modules: all modules of experts, by number.
        owned: the experts of each module that this rank owns.
        num_ranks: that may ask.
        casting: makes the context that forwards, and nothing else, run in.

    Attributes:
        weights: by slice, while a pass is open.
        ready: gradients of modules that all ranks have left behind.
    """

    def __init__(
        self,
        modules: Sequence[ExpertModule],
        owned: Sequence[range],
        num_ranks: int,
        casting: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.weights: dict[str, Tensor] = {}
        self.ready: SimpleQueue[Gradients] = SimpleQueue()
        self._modules, self._owned = modules, owned
        self._num_ranks = num_ranks
        self._casting = casting
        self._passes: list[_ModulePass] = []
        self.begin()

    def begin(self) -> None:
        """A pass begins or ends, and what is left of an earlier one is forgotten."""
        self.weights = {}
        self._passes = [_ModulePass() for _ in self._modules]

    def slices(self, module: int, attribute: str) -> list[str]:
        """The slices of one of a module's weights that this rank owns."""
        name = self._modules[module].weight(attribute)
        return [slice_name(name, index) for index in self._owned[module]]

    def answer(self, rank: int, call: RowCall, rows: Tensor) -> Tensor:
        """What a rank asks for; its rows are in the order of the experts."""
        match call.asked:
            case Asked.FORWARD | Asked.AGAIN:
                return self._forward(rank, call, rows)
            case Asked.BACKWARD:
                return self._backward(rank, call, rows)
            case Asked.LEAVE:
                self._leave(rank, call.module)
            case Asked.END:
                pass
        return rows

    def _forward(self, rank: int, call: RowCall, rows: Tensor) -> Tensor:
        is_graded = call.asked is Asked.FORWARD
        computed = _Computed((rank, call.micro_batch), [], [], [])
        with torch.set_grad_enabled(is_graded), self._casting():
            for place, part in enumerate(rows.split(call.sizes)):
                if len(part):
                    self._compute(computed, call, place, part.detach().requires_grad_(is_graded))
        if is_graded:
            self._passes[call.module].calls[rank, call.call] = computed
        if not computed.products:
            return rows.new_empty(0, self._modules[call.module].width_out)
        return torch.cat([product.detach() for product in computed.products])

    def _compute(self, computed: _Computed, call: RowCall, place: int, rows: Tensor) -> None:
        module, operator = self._modules[call.module], Operator.of(call.operator)
        weights = {}
        for attribute in (UP, DOWN):
            held = self.weights[self.slices(call.module, attribute)[place]].detach()
            weights[attribute] = held.requires_grad_(attribute in module.trained)
        gated = module.gate(operator.product(rows, weights[UP]))
        computed.products.append(operator.product(gated, weights[DOWN]))
        computed.rows.append(rows)
        computed.weights.append(
            {
                self.slices(call.module, attribute)[place]: weights[attribute]
                for attribute in module.trained
            }
        )

    def _backward(self, rank: int, call: RowCall, gradients: Tensor) -> Tensor:
        now = self._passes[call.module]
        now.num_uses += 1
        computed = now.calls.pop((rank, call.call), None)
        if computed is None or not computed.products:
            return gradients.new_empty(0, self._modules[call.module].width_in)
        weights = [one for held in computed.weights for one in held.items()]
        parts = [part for part in gradients.split(call.sizes) if len(part)]
        wanted = [*computed.rows, *(weight for _, weight in weights)]
        found = torch.autograd.grad(computed.products, wanted, parts)
        num_experts = len(computed.rows)
        for (name, _), gradient in zip(weights, found[num_experts:], strict=True):
            now.num_uses_of[name] += 1
            held = now.parts.setdefault(name, {})
            earlier = held.get(computed.micro_batch)
            held[computed.micro_batch] = gradient if earlier is None else earlier.add_(gradient)
        return torch.cat(found[:num_experts])

    def _leave(self, rank: int, module: int) -> None:
        now = self._passes[module]
        now.left.add(rank)
        if len(now.left) == self._num_ranks:
            self.ready.put(Gradients(module, self._summed(module, now)))
            self._passes[module] = _ModulePass()

    def end(self) -> None:
        """No rank asks for anything more: what is left of the gradients is ready."""
        for module, now in enumerate(self._passes):
            if now.num_uses:
                self.ready.put(Gradients(module, self._summed(module, now)))
        self.begin()

    def _summed(self, module: int, now: _ModulePass) -> dict[str, Tensor | None]:
        if not now.num_uses:
            return {}
        return {
            name: _folded(now, name)
            for attribute in self._modules[module].trained
            for name in self.slices(module, attribute)
        }


@torch.no_grad()
def _folded(now: _ModulePass, name: str) -> Tensor | None:
    """The sum over micro-batches in their order, with the zeros of those that use others."""
    total: Tensor | None = None
    for _, part in sorted(now.parts.pop(name, {}).items()):
        total = part if total is None else total.add_(part)
    if total is not None and now.num_uses > now.num_uses_of[name]:
        # Turns a negative zero into a positive one, as the plain loop does.
        total.add_(0.0)
    return total


class ExpertCall:
    """One call of a module, whose code must hand the rows on from stand-in to stand-in as they are.

    Args:
        forms: of its two weights, by attribute.
        ask: see :meth:`ExpertLink.forward`, which knows the micro-batch.
        ask_back: see :meth:`ExpertLink.backward`.
    """

    def __init__(
        self,
        forms: Mapping[str, ByExpert],
        ask: Callable[[str, Operator, Tensor, Sequence[int]], tuple[Tensor, RowCall]],
        ask_back: Callable[[RowCall, Tensor], Tensor],
    ) -> None:
        self._forms, self._ask, self._ask_back = forms, ask, ask_back
        self._path = forms[UP].name.rpartition(".")[0]
        # The rows as they were given, and what has had them last.
        self._rows, self._version, self._seen = torch.empty(0), 0, ""

    def stand_in(self, module: nn.Module, undo: ExitStack) -> None:
        """Let the module's code find this in the place of its weights and its gate."""
        stand_ins: dict[str, object] = {
            UP: ExpertView(self._forms[UP], _refuse, elsewhere=self._begin),
            GATE: self._gate,
            DOWN: ExpertView(self._forms[DOWN], _refuse, elsewhere=self._products),
        }
        for name, stand_in in stand_ins.items():
            vars(module)[name] = stand_in
            undo.callback(vars(module).pop, name)

    def _begin(self, _operator: Operator, rows: Tensor, _sizes: Sequence[int]) -> Tensor:
        """The first product: the rows themselves."""
        self._rows, self._version, self._seen = rows, rows._version, UP
        return rows

    def _gate(self, rows: Tensor) -> Tensor:
        """The gate: the rows themselves."""
        self._hand_on(rows, UP, GATE)
        return rows

    def _products(self, operator: Operator, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """The second product: that of both weights, with the gate between them."""
        self._hand_on(rows, GATE, DOWN)
        # Products of trained weights want a gradient, whether their rows do or not.
        is_trained = any(form.weight.requires_grad for form in self._forms.values())
        anchor = rows.new_empty(0).requires_grad_(is_trained)

        calls: list[RowCall] = []

        def ask(given: Sequence[Tensor]) -> tuple[Tensor]:
            made, call = self._ask(self._path, operator, given[0].detach().contiguous(), sizes)
            calls.append(call)
            return (made,)

        def ask_back(gradients: Sequence[Tensor]) -> tuple[Tensor, None]:
            return self._ask_back(calls[0], gradients[0].contiguous()), None

        (products,) = made_elsewhere(ask, ask_back, rows, anchor)
        return products

    def _hand_on(self, rows: Tensor, from_: str, to: str) -> None:
        is_same = rows is self._rows and rows._version == self._version
        if not is_same or self._seen != from_:
            raise error(
                "experts-elsewhere",
                f"the code of {self._path!r} does more to rows between {from_} and {to} than the "
                "owners of its experts would",
                help="set streaming.experts to fetch",
            )
        self._seen = to


def _refuse(records: Sequence[str]) -> None:
    raise error(
        "experts-elsewhere",
        f"the model's code takes {records[0]!r} from its weight, and another system has it",
        help="set streaming.experts to fetch",
    )


THREAD: Final = "experts"


class ExpertLink:
    """See the module's description. Compute's own thread calls everything.

    Args:
        group: the ranks; nobody else sends in it.
        modules: all modules of experts, in an order that all ranks know.
        ownership: of all slices.
        own: over this rank's own records.
        casting: makes the context that forwards, and nothing else, run in.
    """

    def __init__(
        self,
        group: Group,
        modules: Mapping[str, ExpertModule],
        ownership: Ownership,
        own: StoreLink,
        casting: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._rank, self._size, self._own = group.rank, group.size, own
        self._modules = tuple(modules.values())
        self._numbers = {path: number for number, path in enumerate(modules)}
        self._owned = [_dealt(module, ownership, group) for module in self._modules]
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
        # By itself it computes on as many as OpenMP begins with, and bits depend on the number.
        self._thread.submit(torch.set_num_threads, torch.get_num_threads()).result()
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
        self.leave(lambda path: True)
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

    def stand_in(
        self,
        module: nn.Module,
        forms: Mapping[str, ByExpert],
        micro_batch: int | None,
        undo: ExitStack,
    ) -> None:
        """Let a module's code find its weights elsewhere until ``undo`` is closed.

        Args:
            module: of experts.
            forms: of its two weights, by attribute.
            micro_batch: see :meth:`forward`.
            undo: gets what gives the module its own back.
        """
        ask = partial(self.forward, micro_batch=micro_batch)
        ExpertCall(forms, ask, self.backward).stand_in(module, undo)

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

    def leave(self, is_passed: Callable[[str], bool]) -> None:
        """Tell owners of the modules that the backward of this rank has left behind."""
        for path in tuple(filter(is_passed, self._entered)):
            self._entered.discard(path)
            call = RowCall(Asked.LEAVE, self._numbers[path])
            self._exchange.tell(call)
            self._answer(self._rank, call, torch.empty(0))

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


def _dealt(module: ExpertModule, ownership: Ownership, group: Group) -> list[range]:
    """The experts of a module with which each rank computes, which are neighbours."""
    slices = [slice_name(module.weight(UP), n) for n in range(module.num_experts)]
    from_up = [ownership.computed_by(name, group.rank) for name in slices]
    starts = [from_up.index(rank) for rank in range(group.size)]
    return [range(start, start + from_up.count(rank)) for rank, start in enumerate(starts)]


def _for_owner(call: RowCall, owned: range) -> RowCall:
    return replace(call, sizes=call.sizes[owned.start : owned.stop])
