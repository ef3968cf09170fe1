"""How a weight is stored, seen by its layer's code, and differentiated: whole, or by expert.

A weight that holds many experts may be stored slice by slice along its first dim. The slices are
what streams, and only those that the layer's code asks for, which finds a view in the weight's
place.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torch import nn

from openwafer.training.store.layout import slice_name
from openwafer.training.torch_private import FakeTensor, pytree

MOST_AHEAD: Final = 8

Bring = Callable[[Sequence[str]], None]
"""Brings the first of these stored arrays to the device, in the place of older ones.

Up to :data:`MOST_AHEAD` others, which may be wanted next, are on their way then, if there is room.
"""


class WeightForm:
    """A weight of a model, and what the trunk streams in its place: here, the weight itself.

    The trunk stores, moves, clips and updates the stored parameters; it knows none of the model's
    own where the two differ.

    Attributes:
        name: of the weight in the model.
        weight: the model's own parameter.
        stored: the parameters that stream, by the names of their arrays in the store.
    """

    def __init__(self, name: str, weight: nn.Parameter) -> None:
        self.name, self.weight = name, weight
        self.stored: Mapping[str, nn.Parameter] = {name: weight}


class ByExpert(WeightForm):
    """A weight [experts, ...] whose experts are stored one by one.

    The plain loop's gradient of such a weight is one array: where any expert has a gradient the
    others have zeros, and are updated. A use of one expert adds zeros to the gradients of all
    others, which turns a negative zero there into a positive one.

    Attributes:
        names: of the slices.
        is_counting: whether uses are noted.
        followers: weights of which the code will use the same experts next.
        refuses_whole: whether a use of all experts together raises
            :class:`UsedWholeError`.
        num_rows: rows that grouped products of this pass have multiplied.
        is_grouped: whether the weight was used in this pass, and by grouped products alone.
    """

    def __init__(self, name: str, weight: nn.Parameter) -> None:
        super().__init__(name, weight)
        self.stored = {
            slice_name(name, index): nn.Parameter(part, requires_grad=weight.requires_grad)
            for index, part in enumerate(weight.detach())
        }
        self.names = tuple(self.stored)
        self.followers: tuple[ByExpert, ...] = ()
        self.is_counting = False
        self.refuses_whole = False
        self.num_rows = 0
        self._num_uses = self._num_products = 0
        self._num_uses_of: Counter[str] = Counter()

    def slice_of(self, index: int) -> nn.Parameter:
        """The parameter of an expert; a negative index counts from the last."""
        return self.stored[self.names[index]]

    def wanted(self, experts: Sequence[int]) -> list[str]:
        """The slices that a use of these experts will want, those of followers behind its own."""
        return [form.names[index] for form in (self, *self.followers) for index in experts]

    def begin_pass(self) -> None:
        """Forget which experts were used."""
        self.num_rows = self._num_uses = self._num_products = 0
        self._num_uses_of.clear()

    @property
    def is_grouped(self) -> bool:
        """See above."""
        return 0 < self._num_uses == self._num_products

    def note_rows(self, num_rows: int) -> None:
        """The layer's code multiplies so many rows in one grouped product."""
        if self.is_counting:
            self.num_rows += num_rows
            self._num_products += 1

    def note_use(self, experts: Sequence[int]) -> None:
        """The layer's code uses these experts in one operation on the weight."""
        if self.is_counting:
            self._num_uses += 1
            self._num_uses_of.update(self.names[index] for index in experts)

    @property
    def used(self) -> frozenset[str]:
        """The slices that were used in this pass."""
        return frozenset(self._num_uses_of)

    def add_zeros_of_others(self, name: str, gradient: torch.Tensor) -> None:
        """Add to a slice's gradient, in place, what uses of other experts would add to it."""
        if self._num_uses > self._num_uses_of[name]:
            gradient.add_(0.0)

    def without_gradient(self, arrived: Iterable[str]) -> tuple[str, ...]:
        """The slices whose gradients are zero, given those of which one has arrived."""
        has_one = set(arrived)
        return tuple(name for name in self.names if has_one and name not in has_one)


def forms_of(model: nn.Module, by_expert: Iterable[str]) -> dict[str, WeightForm]:
    """The form of every parameter of a model.

    Args:
        model: names the parameters.
        by_expert: those whose experts are stored one by one.
    """
    sliced = set(by_expert)
    return {
        name: ByExpert(name, weight) if name in sliced else WeightForm(name, weight)
        for name, weight in model.named_parameters()
    }


# Products of rows that are sorted by expert with the experts' weights, by name: which of them
# there are depends on the versions of torch and transformers.
GROUPED: Final = ("grouped_mm", "_grouped_mm", "grouped_mm_fallback")


class UsedWholeError(Exception):
    """The code of a module uses a weight whole while a plan is made that has its experts apart.

    Attributes:
        name: of the weight.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Operator:
    """How rows are multiplied by the weights of their experts.

    Attributes:
        name: one of :data:`GROUPED`.
        is_transposed: whether the last two dims of the weight change places first.
    """

    name: str
    is_transposed: bool

    @classmethod
    def of(cls, number: int) -> Self:
        """The operator of a number; see :attr:`number`."""
        name, is_transposed = divmod(number, 2)
        return cls(GROUPED[name], bool(is_transposed))

    @property
    def number(self) -> int:
        """Says which it is, to another process."""
        return 2 * GROUPED.index(self.name) + self.is_transposed

    def product(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Of all rows with the weight of one expert."""
        alone = weight.unsqueeze(0)
        alone = alone.transpose(-2, -1) if self.is_transposed else alone
        offs = torch.tensor([len(rows)], dtype=torch.int32, device=rows.device)
        product: torch.Tensor = _operator_named(self.name)(rows, alone, offs=offs)
        return product


def _operator_named(name: str) -> Callable[..., torch.Tensor]:
    homes = (torch.nn.functional, torch, torch.ops.transformers)
    found: Callable[..., torch.Tensor] = next(
        getattr(home, name) for home in homes if hasattr(home, name)
    )
    return found


Elsewhere = Callable[[Operator, torch.Tensor, Sequence[int]], torch.Tensor]
"""Of all experts, the products with their rows, given how many rows each has."""


# What a view says of itself without its values, as its weight does.
_OF_WEIGHT: Final = frozenset({"dtype", "device", "ndim", "requires_grad"})


class ExpertView:
    """Stands for the weight [experts, ...] of a form while the module's code runs.

    It does what such code does with a weight: takes one expert, takes the experts of an index
    tensor, transposes the weight, multiplies grouped rows by it. Each of that brings the experts
    that it needs, one after the other, and gives the bits that the whole weight would give. What no
    plan has foreseen is done with all experts together, in memory that is metered.

    Args:
        form: of the weight.
        bring: brings an expert's slice to the device.
        is_transposed: whether the last two dims have changed places.
        elsewhere: makes grouped products where others have the weight; ``None`` where it comes.
    """

    def __init__(
        self,
        form: ByExpert,
        bring: Bring,
        *,
        is_transposed: bool = False,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.form = form
        self._bring = bring
        self._is_transposed = is_transposed
        self._elsewhere = elsewhere

    @property
    def shape(self) -> torch.Size:
        """As of the weight."""
        *rest, rows, columns = self.form.weight.shape
        return torch.Size((*rest, columns, rows) if self._is_transposed else (*rest, rows, columns))

    def dim(self) -> int:
        """As of the weight."""
        return self.form.weight.ndim

    def size(self, dim: int | None = None) -> torch.Size | int:
        """As of the weight."""
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        return self.shape[0]

    def transpose(self, first: int, second: int) -> "ExpertView | torch.Tensor":
        """The weight with two dims in the other order; a view for the last two."""
        if {first % self.ndim, second % self.ndim} != {self.ndim - 2, self.ndim - 1}:
            return self._all_experts().transpose(first, second)
        turned = not self._is_transposed
        return ExpertView(self.form, self._bring, is_transposed=turned, elsewhere=self._elsewhere)

    def __getitem__(self, index: Any) -> torch.Tensor:
        is_place = isinstance(index, torch.Tensor) and index.dtype in (torch.int32, torch.int64)
        if not self._is_transposed:
            if type(index) is int or (is_place and not index.ndim):
                return self._expert(int(index))
            if is_place and index.ndim == 1:
                return self._experts(index)
        return self._all_experts()[index]

    def brought(self, experts: Sequence[int]) -> Iterator[nn.Parameter]:
        """The slices of experts one by one, each on the device until others take its place."""
        wanted = self.form.wanted(experts)
        for place, index in enumerate(experts):
            self._bring(wanted[place : place + 1 + MOST_AHEAD])
            yield self.form.slice_of(index)

    def _expert(self, index: int) -> torch.Tensor:
        self.form.note_use([index])
        [weight] = self.brought([index])
        # Not the parameter itself, which autocast would cast once for several calls.
        return weight.view(weight.shape)

    def _experts(self, index: torch.Tensor) -> torch.Tensor:
        hit = _experts_in(index, len(self))
        self.form.note_use(hit)
        weights = map(self.form.slice_of, hit)
        gathered: torch.Tensor = _Gathered.apply(self, index, hit, *weights)  # type: ignore[no-untyped-call]
        return gathered

    def _all_experts(self) -> torch.Tensor:
        """All experts."""
        if self.form.refuses_whole:
            raise UsedWholeError(self.form.name)
        whole = self._experts(torch.arange(len(self), device=self.device))
        return whole.transpose(-2, -1) if self._is_transposed else whole

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {name: value for name, value in (kwargs or {}).items() if value is not None}
        views = [one for one in (*args, *given.values()) if isinstance(one, cls)]
        named = str(getattr(func, "__name__", func)).rpartition(".")[2]
        is_grouped = named in GROUPED and len(args) == 2 and [*args[1:]] == views
        if is_grouped and given.keys() == {"offs"}:
            return views[0].grouped(func, named, args[0], given["offs"])
        args, kwargs = pytree.tree_map_only(cls, cls._all_experts, (args, kwargs or {}))
        return func(*args, **kwargs)

    def grouped(
        self,
        multiply: Callable[..., torch.Tensor],
        name: str,
        rows: torch.Tensor,
        offs: torch.Tensor,
    ) -> torch.Tensor:
        """The product of each expert with its rows, by the same operator as of all with all."""
        sizes = _sizes_of(offs, len(rows))
        self.form.note_rows(len(rows))
        if self._elsewhere is not None:
            return self._elsewhere(Operator(name, self._is_transposed), rows, sizes)
        if len(sizes) != len(self) or sum(sizes) != len(rows):
            return multiply(rows, self._all_experts(), offs=offs)
        hit = [index for index, size in enumerate(sizes) if size] or [0]
        self.form.note_use(hit)
        products = []
        parts = rows.split([sizes[index] for index in hit])
        for weight, part in zip(self.brought(hit), parts, strict=True):
            alone = weight.unsqueeze(0)
            alone = alone.transpose(-2, -1) if self._is_transposed else alone
            products.append(_product(multiply, part, alone, offs))
        return torch.cat(products)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.form.weight if name in _OF_WEIGHT else self._all_experts(), name)


def _product(
    multiply: Callable[..., torch.Tensor],
    rows: torch.Tensor,
    weight: torch.Tensor,
    offs: torch.Tensor,
) -> torch.Tensor:
    """The product of all rows with a weight [1, ...]."""
    if isinstance(rows, FakeTensor):
        # Of fake tensors torch knows grouped products in bf16 alone.
        with torch.autocast(rows.device.type, enabled=False):
            return rows @ weight[0]
    return multiply(rows, weight, offs=offs.new_tensor([len(rows)]))


def _experts_in(index: torch.Tensor, num_experts: int) -> list[int]:
    """The experts of an index tensor; without values as many as there may be."""
    if isinstance(index, FakeTensor):
        return list(range(max(min(num_experts, len(index)), 1)))
    return index.unique().tolist() or [0]


def _sizes_of(offs: torch.Tensor, num_rows: int) -> list[int]:
    """How many rows each expert has; without values as many experts as may have as many each.

    What a product takes of memory depends on all rows, and hardly on how they are shared out.
    """
    if isinstance(offs, FakeTensor):
        num_experts = len(offs)
        return [(num_rows + index) // num_experts for index in range(num_experts)][::-1]
    ends = offs.tolist()
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


class _Gathered(torch.autograd.Function):
    """Experts by an index tensor: [rows, ...], and a gradient for each that is in it."""

    @staticmethod
    def forward(
        ctx: Any, view: ExpertView, index: torch.Tensor, hit: list[int], *_weights: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.hit = hit
        shape, dtype = (len(index), *view.shape[1:]), view.dtype
        gathered = torch.empty(shape, dtype=dtype, device=index.device)
        for expert, weight in zip(hit, view.brought(hit), strict=True):
            gathered[index == expert] = weight
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (index,), (gradient,) = ctx.saved_tensors, gradients
        places = torch.searchsorted(index.new_tensor(ctx.hit), index)
        summed = gradient.new_zeros((len(ctx.hit), *gradient.shape[1:]))
        if gradient.device.type == "cpu" and gradient.dtype is torch.float32:
            # Row by row, as the plain loop does on one thread; on several it takes any order.
            summed.index_add_(0, places, gradient)
        else:
            summed.index_put_((places,), gradient, accumulate=True)
        return None, None, None, *summed
