"""The experts that one rank owns: what it computes with them, for itself and for other ranks.

Rows come as they were routed, those of a micro-batch in one call, and each expert's products are
those of the plain loop: the same operators on the same rows. Gradients of weights are kept apart
for each micro-batch until all ranks have left the module behind, and then added in the order of the
micro-batches, which is that of the ranks. All of it runs in one thread.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from queue import SimpleQueue

import torch
from torch import Tensor

from openwafer.training.collectives.row_exchange import Asked, RowCall
from openwafer.training.store.layout import slice_name
from openwafer.training.stream.forms.expert_modules import DOWN, UP, ExpertModule
from openwafer.training.stream.forms.weight_form import Operator


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
    """See the module's description; one thread calls everything but :attr:`ready`'s ``get``.

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
