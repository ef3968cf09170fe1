"""What the code of a module of experts finds where other ranks compute experts.

The module's own code runs: it sorts rows by expert, weighs what comes back and adds it up. Its
first product gives it the rows themselves, its gate does nothing, and its second product is made of
the rows by the experts' owners. So one exchange carries a row there and its product back.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from openwafer.diagnostics import error
from openwafer.training.collectives.row_exchange import RowCall
from openwafer.training.stream.execute.phases import Phase
from openwafer.training.stream.forms.by_expert import ByExpert
from openwafer.training.stream.forms.expert_modules import DOWN, GATE, UP
from openwafer.training.stream.forms.expert_view import ExpertView, Operator
from openwafer.training.stream.replicas.expert_link import ExpertLink


class RemoteExperts:
    """See the module's description.

    Args:
        link: to the owners.
        micro_batch: the index of the one that goes on.
    """

    def __init__(self, link: ExpertLink, micro_batch: Callable[[], int]) -> None:
        self._link = link
        self._micro_batch = micro_batch

    def stand_in(
        self, module: nn.Module, forms: Mapping[str, ByExpert], phase: Phase, undo: ExitStack
    ) -> None:
        """Let a module's code find its weights elsewhere until ``undo`` is closed.

        Args:
            module: of experts.
            forms: of its two weights, by attribute.
            phase: in which its layer runs.
            undo: gets what gives the module its own back.
        """
        micro_batch = None if phase is Phase.RECOMPUTE else self._micro_batch()
        path = forms[UP].name.rpartition(".")[0]
        products = partial(self._products, path, micro_batch, forms)
        stand_ins: dict[str, object] = {
            UP: ExpertView(forms[UP], _refuse, elsewhere=_unmultiplied),
            GATE: _ungated,
            DOWN: ExpertView(forms[DOWN], _refuse, elsewhere=products),
        }
        for name, stand_in in stand_ins.items():
            vars(module)[name] = stand_in
            undo.callback(vars(module).pop, name)

    def _products(
        self,
        path: str,
        micro_batch: int | None,
        forms: Mapping[str, ByExpert],
        operator: Operator,
        rows: Tensor,
        sizes: Sequence[int],
    ) -> Tensor:
        is_trained = any(form.weight.requires_grad for form in forms.values())
        # Products of trained weights want a gradient, whether their rows do or not.
        anchor = rows.new_empty(0).requires_grad_(is_trained)
        call = _Call(self._link, path, operator, tuple(sizes), micro_batch)
        products: Tensor = _Products.apply(call, rows, anchor)  # type: ignore[no-untyped-call]
        return products

    def leave(self, is_passed: Callable[[str], bool]) -> None:
        """Tell owners of modules that the backward pass has left behind.

        Args:
            is_passed: whether it has left the layer of a module of that path.
        """
        for path in filter(is_passed, self._link.entered):
            self._link.leave(path)


class _Call:
    """One call of a module."""

    def __init__(
        self,
        link: ExpertLink,
        path: str,
        operator: Operator,
        sizes: tuple[int, ...],
        micro_batch: int | None,
    ) -> None:
        self._link = link
        self._path, self._operator, self._sizes = path, operator, sizes
        self._micro_batch = micro_batch
        self._made: RowCall | None = None

    def forward(self, rows: Tensor) -> Tensor:
        products, self._made = self._link.forward(
            self._path, self._operator, rows.detach().contiguous(), self._sizes, self._micro_batch
        )
        return products

    def backward(self, gradients: Tensor) -> Tensor:
        assert self._made is not None
        return self._link.backward(self._made, gradients.contiguous())


class _Products(torch.autograd.Function):
    """The products of rows with the experts of other ranks."""

    @staticmethod
    def forward(ctx: Any, call: _Call, rows: Tensor, _anchor: Tensor) -> Tensor:
        ctx.call = call
        return call.forward(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, ctx.call.backward(gradients[0]), None


def _unmultiplied(_operator: Operator, rows: Tensor, _sizes: Sequence[int]) -> Tensor:
    return rows


def _ungated(rows: Tensor) -> Tensor:
    return rows


def _refuse(records: Sequence[str]) -> None:
    raise error(
        "experts-elsewhere",
        f"the model's code takes {records[0]!r} from its weight, and another system has it",
        help="set streaming.experts to fetch",
    )
