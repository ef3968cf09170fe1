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
from openwafer.training.stream.execute.passes import Phase
from openwafer.training.stream.forms.expert_modules import DOWN, GATE, UP
from openwafer.training.stream.forms.weight_form import ByExpert, ExpertView, Operator
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
        ask = partial(self._link.forward, micro_batch=micro_batch)
        ExpertCall(forms, ask, self._link.backward).stand_in(module, undo)

    def leave(self, is_passed: Callable[[str], bool]) -> None:
        """Tell owners of modules that the backward pass has left behind.

        Args:
            is_passed: whether it has left the layer of a module of that path.
        """
        for path in filter(is_passed, self._link.entered):
            self._link.leave(path)


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

        def ask(given: Tensor) -> tuple[Tensor, RowCall]:
            return self._ask(self._path, operator, given, sizes)

        products: Tensor = _Products.apply(ask, self._ask_back, rows, anchor)  # type: ignore[no-untyped-call]
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


class _Products(torch.autograd.Function):
    """The products of rows with the experts of other ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        forward: Callable[[Tensor], tuple[Tensor, RowCall]],
        backward: Callable[[RowCall, Tensor], Tensor],
        rows: Tensor,
        _anchor: Tensor,
    ) -> Tensor:
        products, call = forward(rows.detach().contiguous())
        ctx.backward_of = partial(backward, call)
        return products

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, ctx.backward_of(gradients[0].contiguous()), None


def _refuse(records: Sequence[str]) -> None:
    raise error(
        "experts-elsewhere",
        f"the model's code takes {records[0]!r} from its weight, and another system has it",
        help="set streaming.experts to fetch",
    )
