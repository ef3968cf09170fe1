"""Weights whose experts stream one by one, in one pass: what is used of them and what is pushed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from openwafer.training.store.slices import slice_of, whole_name
from openwafer.training.stream.execute.compiled_layers import FORWARD
from openwafer.training.stream.execute.phases import Phase
from openwafer.training.stream.execute.stand_ins import Function, stand_in
from openwafer.training.stream.forms.by_expert import ByExpert
from openwafer.training.stream.forms.weight_form import WeightForm


class ExpertPass:
    """See the module's description.

    Args:
        forms: of all weights of the model.
        use: brings the record of a slice to the device.
        phase: where the executor is.
    """

    def __init__(
        self,
        forms: Mapping[str, WeightForm],
        use: Callable[[str], None],
        phase: Callable[[], Phase],
    ) -> None:
        self._forms = {name: form for name, form in forms.items() if isinstance(form, ByExpert)}
        self._use = use
        self._phase = phase
        # Slices whose gradients of this pass have been pushed, by weight.
        self._pushed: dict[str, set[str]] = {}

    def refuse_whole(self) -> None:
        """Let a use of all experts of a weight together raise from now on."""
        for form in self._forms.values():
            form.refuses_whole = True

    def attach(self, model: nn.Module) -> ExitStack:
        """Let modules find views of these weights while they run; closing the stack ends that."""
        by_module: dict[str, list[ByExpert]] = {}
        for name, form in self._forms.items():
            by_module.setdefault(name.rpartition(".")[0], []).append(form)
        undo = ExitStack()
        for path, forms in by_module.items():
            module = model.get_submodule(path)
            run = partial(self._run, module, forms)
            undo.callback(stand_in(module, FORWARD, module.forward, run))
        return undo

    def _run(
        self,
        module: nn.Module,
        forms: Sequence[ByExpert],
        function: Function,
        args: Any,
        kwargs: Any,
    ) -> Any:
        phase, found = self._phase(), vars(module)
        if phase not in (Phase.LAYER, Phase.RECOMPUTE):
            return function(*args, **kwargs)
        with ExitStack() as undo:
            for form in forms:
                # A layer that runs again leaves the graph of the first time.
                form.is_counting = phase is Phase.LAYER and torch.is_grad_enabled()
                attribute = form.name.rpartition(".")[2]
                found[attribute] = form.seen(self._use)
                undo.callback(found.pop, attribute)
            return function(*args, **kwargs)

    @property
    def used(self) -> frozenset[str]:
        """The slices that the pass under way, or the last one, has used."""
        return frozenset(chain.from_iterable(form.used for form in self._forms.values()))

    def begin_pass(self) -> None:
        """Nothing is used yet."""
        for form in self._forms.values():
            form.begin_pass()

    def end_pass(self) -> None:
        """Every gradient of the pass has been pushed."""
        self._pushed.clear()

    def push(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Gradients are about to be pushed: make those of slices what the plain loop has."""
        for name, gradient in gradients.items():
            if slice_of(name) is not None:
                self._forms[whole_name(name)].add_zeros_of_others(name, gradient)
                self.note_pushed(name)

    def note_pushed(self, name: str) -> None:
        """The gradient of a slice has been pushed."""
        self._pushed.setdefault(whole_name(name), set()).add(name)

    def unpushed(self) -> Iterator[str]:
        """Slices without a gradient, of weights of which others had one."""
        for whole, pushed in self._pushed.items():
            yield from self._forms[whole].without_gradient(pushed)
