"""Weights whose experts stream one by one, in one pass: what is used of them and what is pushed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from openwafer.training.store.layout import slice_of, whole_name
from openwafer.training.stream.execute.attachment import FORWARD, Function, stand_in
from openwafer.training.stream.execute.passes import Phase
from openwafer.training.stream.forms.weight_form import Bring, ByExpert, ExpertView, WeightForm
from openwafer.training.stream.layers import Partition
from openwafer.training.stream.replicas.expert_link import ExpertLink


class ExpertPass:
    """See the module's description.

    Args:
        forms: of all weights of the model.
        use: brings the record of a slice to the device; see :data:`Bring`.
        phase: where the executor is.
        micro_batch: the index of the one that goes on.

    Attributes:
        elsewhere: where passes with gradients have their experts computed; ``None`` where their
            weights come.
    """

    def __init__(
        self,
        forms: Mapping[str, WeightForm],
        use: Bring,
        phase: Callable[[], Phase],
        micro_batch: Callable[[], int],
    ) -> None:
        self._forms = {name: form for name, form in forms.items() if isinstance(form, ByExpert)}
        self._use = use
        self._phase, self._micro_batch = phase, micro_batch
        self.elsewhere: ExpertLink | None = None
        # Slices whose gradients of this pass have been pushed, by weight, and the weights of which
        # all have.
        self._pushed: dict[str, set[str]] = {}
        self._done: set[str] = set()

    def refuse_whole(self) -> None:
        """Let a use of all experts of a weight together raise from now on."""
        for form in self._forms.values():
            form.refuses_whole = True

    def attach(self, model: nn.Module, split: Partition) -> ExitStack:
        """Let layers find views of these weights while they run; closing the stack ends that."""
        layer_of = {layer.slice_of: layer.parent for layer in split.layers if layer.slice_of}
        by_layer: dict[str, list[ByExpert]] = {}
        for name, form in self._forms.items():
            by_layer.setdefault(layer_of[name] or "", []).append(form)
        undo = ExitStack()
        for path, forms in by_layer.items():
            module = model.get_submodule(path)
            homes = [model.get_submodule(form.name.rpartition(".")[0]) for form in forms]
            for place, form in enumerate(forms):
                behind = zip(homes[place + 1 :], forms[place + 1 :], strict=True)
                form.followers = tuple(one for home, one in behind if home is homes[place])
            run = partial(self._run, list(zip(homes, forms, strict=True)))
            undo.callback(stand_in(module, FORWARD, module.forward, run))
        return undo

    def _run(
        self,
        weights: Sequence[tuple[nn.Module, ByExpert]],
        function: Function,
        args: Any,
        kwargs: Any,
    ) -> Any:
        phase = self._phase()
        if phase not in (Phase.LAYER, Phase.RECOMPUTE):
            return function(*args, **kwargs)
        with ExitStack() as undo:
            if self.elsewhere is not None and torch.is_grad_enabled():
                self._send_elsewhere(self.elsewhere, weights, phase, undo)
                return function(*args, **kwargs)
            for module, form in weights:
                # A layer that runs again leaves the graph of the first time.
                form.is_counting = phase is Phase.LAYER and torch.is_grad_enabled()
                found, attribute = vars(module), form.name.rpartition(".")[2]
                if attribute not in found:
                    found[attribute] = ExpertView(form, self._use)
                    undo.callback(found.pop, attribute)
            return function(*args, **kwargs)

    def _send_elsewhere(
        self,
        elsewhere: ExpertLink,
        weights: Sequence[tuple[nn.Module, ByExpert]],
        phase: Phase,
        undo: ExitStack,
    ) -> None:
        by_module: dict[nn.Module, dict[str, ByExpert]] = {}
        for module, form in weights:
            by_module.setdefault(module, {})[form.name.rpartition(".")[2]] = form
        micro_batch = None if phase is Phase.RECOMPUTE else self._micro_batch()
        for module, forms in by_module.items():
            elsewhere.stand_in(module, forms, micro_batch, undo)

    @property
    def used(self) -> frozenset[str]:
        """The slices that the pass under way, or the last one, has used."""
        return frozenset(chain.from_iterable(form.used for form in self._forms.values()))

    @property
    def num_rows(self) -> dict[str, int]:
        """Rows that grouped products of the pass have multiplied, by weight.

        Weights that were used in other ways are missing.
        """
        return {name: form.num_rows for name, form in self._forms.items() if form.is_grouped}

    def begin_pass(self) -> None:
        """Nothing is used yet."""
        for form in self._forms.values():
            form.begin_pass()

    def end_pass(self) -> None:
        """Every gradient of the pass has been pushed."""
        self._pushed.clear()
        self._done.clear()

    def push(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Gradients are about to be pushed: make those of slices what the plain loop has."""
        for name, gradient in gradients.items():
            if slice_of(name) is not None:
                self._forms[whole_name(name)].add_zeros_of_others(name, gradient)
                self._pushed.setdefault(whole_name(name), set()).add(name)

    def take_unpushed(self, is_passed: Callable[[str], bool]) -> list[str]:
        """Slices without a gradient, of weights of which others had one; each comes once.

        Args:
            is_passed: whether the backward pass has left the layer of a slice behind.
        """
        if self.elsewhere is not None:
            first = {name.rpartition(".")[0]: form.names[0] for name, form in self._forms.items()}
            self.elsewhere.leave(lambda path: is_passed(first[path]))
        unpushed: list[str] = []
        for whole, pushed in tuple(self._pushed.items()):
            if is_passed(next(iter(pushed))):
                del self._pushed[whole]
                if whole not in self._done:
                    self._done.add(whole)
                    unpushed += self._forms[whole].without_gradient(pushed)
        return unpushed
