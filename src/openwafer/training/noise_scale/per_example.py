"""Exact squared norms of each example's gradients, measured while backward computes their sum.

Hooks see the input of a module and the gradient of its output. The gradient of a weight is a sum
over tokens; where the sum ends with each example, it is that example's (Gray et al. 2024,
arXiv:2411.00999, section 3). Nothing larger is made than one weight's gradient, or one vector an
example, and the gradients themselves stay as they are, bit for bit.

Shapes: B examples, T tokens of each, D inputs, F outputs.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle
from transformers.pytorch_utils import Conv1D

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.torch_private import graph_task_id

TOLERANCE = 1e-4
# The mean squares of the rows that a layer is tried on: what is added to them must show.
SCALES = (1e-6, 1e-3, 1.0)


@dataclass(frozen=True)
class NormLayer:
    """How a layer normalises.

    Attributes:
        shape: of its weights, the last dims of its input.
        epsilon: added to the mean square; ``None`` for torch's own choice.
        is_centred: whether the mean is taken off before, as LayerNorm does.
    """

    shape: tuple[int, ...]
    epsilon: float | None
    is_centred: bool

    def normalise(self, x: Tensor) -> Tensor:
        """The input as it is before weights and bias."""
        if self.is_centred:
            assert self.epsilon is not None
            return F.layer_norm(x, self.shape, None, None, self.epsilon)
        return F.rms_norm(x, self.shape, None, self.epsilon)


def norm_layer_of(module: nn.Module) -> NormLayer | None:
    """How a module normalises; ``None`` for one that does something else, or has no weights."""
    if isinstance(module, nn.LayerNorm):
        is_weighed = module.elementwise_affine
        return NormLayer(module.normalized_shape, module.eps, True) if is_weighed else None
    if isinstance(module, nn.RMSNorm):
        is_weighed = module.elementwise_affine
        return NormLayer(module.normalized_shape, module.eps, False) if is_weighed else None
    parameters = dict(module.named_parameters())
    if "weight" not in parameters or parameters.keys() - {"weight", "bias"}:
        return None
    shape = parameters["weight"].shape
    if len(shape) != 1 or any(each.shape != shape for each in parameters.values()):
        return None
    return _compared(module, parameters)


def _compared(module: nn.Module, parameters: Mapping[str, nn.Parameter]) -> NormLayer | None:
    [size] = parameters["weight"].shape
    scales = torch.tensor(SCALES)[:, None]
    x = torch.randn(len(SCALES), size, generator=torch.Generator().manual_seed(0)) * scales.sqrt()
    outputs = [_with_weights(module, parameters, x, value) for value in (0.0, 1.0, 2.0)]
    if any(output is None for output in outputs):
        return None
    none, once, twice = (output for output in outputs if output is not None)
    found = once - none
    if not torch.allclose(twice - none, 2 * found, rtol=TOLERANCE):
        return None
    for candidate in _candidates(module, (size,)):
        if torch.allclose(found, candidate.normalise(x), rtol=TOLERANCE, atol=TOLERANCE):
            return candidate
    return None


def _with_weights(
    module: nn.Module, parameters: Mapping[str, nn.Parameter], x: Tensor, value: float
) -> Tensor | None:
    """Output for these weights and no bias; ``None`` from a module that takes no such input."""
    weights = {name: torch.zeros(p.shape) for name, p in parameters.items()}
    weights["weight"] += value
    try:
        with torch.no_grad():
            output = functional_call(module, weights, (x,))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return None
    return output if isinstance(output, Tensor) and output.shape == x.shape else None


def _candidates(module: nn.Module, shape: tuple[int, ...]) -> Iterator[NormLayer]:
    numbers = [v for v in vars(module).values() if isinstance(v, float) and 0 < v < math.inf]
    for epsilon in numbers:
        yield NormLayer(shape, epsilon, False)
        yield NormLayer(shape, epsilon, True)


class Watched(Enum):
    """Whose weights are measured.

    Attributes:
        NORMS: of normalisation layers, which are small and predict the noise scale of all well
            (Gray et al. 2024, arXiv:2411.00999).
        ALL: of normalisation layers, linear maps and embeddings.
    """

    NORMS = "norms"
    ALL = "all"


@dataclass(frozen=True)
class WatchedModule:
    """A module whose weights are measured.

    Attributes:
        path: in the model.
        norm: how it normalises; ``None`` for a linear map or a table of embeddings.
        weight, bias: names in the model of those that are trained.
        is_tied: whether its weight is that of another module, too.
    """

    path: str
    module: nn.Module
    norm: NormLayer | None
    weight: str | None
    bias: str | None
    is_tied: bool = False


def watched_modules(model: nn.Module, watched: Watched) -> list[WatchedModule]:
    """The modules of a model that are measured, in its order."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = [*_found(model, watched, names)]
    uses = Counter(each.weight for each in found)
    return [
        replace(each, is_tied=each.weight is not None and uses[each.weight] > 1) for each in found
    ]


def _found(
    model: nn.Module, watched: Watched, names: Mapping[nn.Parameter, str]
) -> Iterator[WatchedModule]:
    for path, module in model.named_modules():
        norm = norm_layer_of(module)
        if norm is None and (watched is Watched.NORMS or not is_map(module)):
            continue
        trained = {
            own: names[parameter]
            for own, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad
        }
        if trained:
            yield WatchedModule(path, module, norm, trained.get("weight"), trained.get("bias"))


def is_map(module: nn.Module) -> bool:
    """Whether a module is a plain linear map or a plain table of embeddings."""
    # One with a forward of its own may do anything with its weight.
    forward = type(module).forward
    if isinstance(module, nn.Embedding):
        return forward is nn.Embedding.forward and not module.scale_grad_by_freq
    return forward is nn.Linear.forward or isinstance(module, Conv1D)


MAX_SHOWN = 3


class ExampleNorms:
    """Squared norms of the gradients of the examples of one forward.

    They are norms of what each example adds to the gradient of the loss that backward started
    from, with its weights and scales. So where that is a mean over the batch, an example's own
    gradient is as many times larger as there are examples; see
    :func:`~openwafer.training.noise_scale.estimators.estimate_from_examples`.

    Attributes:
        by_name: by name of a parameter, (examples,) in float32.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._called: set[str] = set()
        # Of tied weights: tokens that the table was asked for, and rows of the other's gradient.
        self._ids: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}

    def note_call(self, path: str) -> None:
        """A module is called; refuse a second call, whose gradients autograd adds to these."""
        if path in self._called:
            raise _not_told(f"{path!r} is called more than once in a forward")
        self._called.add(path)

    def note_ids(self, name: str, ids_BT: Tensor) -> None:
        """A table whose weight is tied is asked for these tokens."""
        self._ids[name] = ids_BT

    def add(self, name: str, squares_B: Tensor) -> None:
        """Add squared norms of a parameter."""
        before = self.by_name.get(name)
        self.by_name[name] = squares_B if before is None else before + squares_B

    def add_linear(self, name: str, x_BTD: Tensor, gradient_BTF: Tensor, *, is_tied: bool) -> None:
        """Add what a linear map tells of its weight."""
        self.add(name, of_linear(x_BTD, gradient_BTF))
        if is_tied:
            ids_BT = self._ids.get(name)
            if ids_BT is None or name in self._rows:
                raise _not_told(f"{name!r} is shared by other modules than one table and one map")
            self._rows[name] = rows_of_linear(x_BTD, gradient_BTF, ids_BT)

    def add_embedding(
        self, name: str, ids_BT: Tensor, gradient_BTD: Tensor, *, is_tied: bool
    ) -> None:
        """Add what a table of embeddings tells of its weight."""
        self.add(name, of_embedding(ids_BT, gradient_BTD))
        if is_tied:
            rows_BTD = self._rows.pop(name, None)
            if rows_BTD is None:
                raise _not_told(f"the gradient of {name!r} comes from its table before its map")
            # |a + b|^2 = |a|^2 + |b|^2 + 2 ab, and a table's gradient has the tokens' rows alone.
            self.add(name, 2 * (rows_BTD * gradient_BTD.float()).sum((1, 2)))

    def total(self, names: Iterable[str]) -> Tensor:
        """Sum over parameters, (examples,) in float64.

        Args:
            names: of all parameters that have got a gradient.

        Raises:
            OpenwaferError: ``noise-scale-layers`` for one that no module has told of.
        """
        wanted = [*names]
        if missing := [name for name in wanted if name not in self.by_name]:
            raise _not_told(f"gradients of {_shown(missing)} come from no call of a module")
        return torch.stack([self.by_name[name].double() for name in wanted]).sum(0)


class PerExampleNorms:
    """Measures what each example adds to the gradients of a model's weights.

    Inputs of the model's modules have the example as their first dim, and tokens behind it. A table
    of positions that is asked once for all examples, for (1, tokens) or (tokens,), gives its output
    once for each instead, as a view: what comes behind it is to add it to something that has all
    examples. A weight that code uses beside its module, as in ``F.linear(x, table.weight)``, has
    more gradient than is seen.

    Args:
        model: whose modules get hooks, from the first forward that is measured to :meth:`close`;
            they do nothing in other forwards.
        num_examples: of each forward.

    Attributes:
        names: of the parameters that are measured.

    Raises:
        OpenwaferError: ``noise-scale-layers`` where nothing is to be measured, or with
            :attr:`Watched.ALL` where a trained parameter cannot be.
    """

    def __init__(self, model: nn.Module, num_examples: int, watched: Watched) -> None:
        self._num_examples = num_examples
        self._current: ContextVar[ExampleNorms | None] = ContextVar("examples", default=None)
        self._num_measuring = 0
        self._is_last_measured = False
        modules = watched_modules(model, watched)
        self._watched = {each.path: each for each in modules}
        told = {name for each in modules for name in (each.weight, each.bias) if name is not None}
        trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
        self.names = tuple(name for name in trained if name in told)
        if not self.names:
            raise _not_told(f"{type(model).__name__} has no normalisation layer with weights")
        if watched is Watched.ALL and (missing := [name for name in trained if name not in told]):
            raise _not_told(f"{_shown(missing)} belong to other modules than such")
        self._handles: list[RemovableHandle] = []
        self._is_closed = False

    def attach(self) -> None:
        """Hang hooks on the model, unless they are there already; a first forward does that too."""
        if not self._handles and not self._is_closed:
            self._handles = [
                each.module.register_forward_hook(partial(self._seen, path), with_kwargs=True)
                for path, each in self._watched.items()
            ]

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: a copy of the model does as it does where it is measured, and tells nothing."""
        return self

    def close(self) -> None:
        """Take the hooks off the model."""
        self._is_closed = True
        for handle in self._handles:
            handle.remove()

    @contextmanager
    def measuring(self) -> Iterator[ExampleNorms]:
        """Context of one forward; the norms are there when its backward has ended."""
        self.attach()
        norms = ExampleNorms()
        token = self._current.set(norms)
        # Micro-batches take turns; a rehearsal of a layer has no context variables.
        self._num_measuring += 1
        try:
            yield norms
        finally:
            self._num_measuring -= 1
            self._current.reset(token)

    def require_told(self, names: Iterable[str], forwards: Iterable[ExampleNorms]) -> None:
        """Refuse gradients of parameters that no module has told of in one of these forwards.

        Raises:
            OpenwaferError: ``noise-scale-layers``.
        """
        told = {name for norms in forwards for name in norms.by_name}
        if missing := sorted(set(names) - told):
            raise _not_told(f"gradients of {_shown(missing)} come from no call of a module")

    def _seen(
        self,
        path: str,
        module: nn.Module,
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        output: object,
    ) -> Tensor | None:
        if not isinstance(output, Tensor) or not output.requires_grad or not self._acts():
            return None
        x = self._input(path, args, options)
        widened = None
        if isinstance(module, nn.Embedding) and self._is_for_all(x):
            x = x.expand(self._num_examples, x.shape[-1])
            output = widened = output.expand(self._num_examples, *output.shape[-2:])
        # Saved as autograd saves it: whoever keeps saved tensors elsewhere has it once, and a layer
        # that is run again saves it again.
        anchor = torch.zeros((), requires_grad=True)
        saved: Tensor = _Saved.apply(anchor, x)  # type: ignore[no-untyped-call]
        norms, watched = self._current.get(), self._watched[path]
        if norms is not None and module is watched.module:
            self._require_examples(watched, x)
            norms.note_call(path)
            if isinstance(module, nn.Embedding) and watched.is_tied and watched.weight is not None:
                norms.note_ids(watched.weight, x)
            output.register_hook(partial(_arrived, watched, norms, [saved.grad_fn]))
        return widened

    def _acts(self) -> bool:
        """Whether a forward is measured, or repeats in a backward one that was."""
        if graph_task_id() < 0:
            self._is_last_measured = self._num_measuring > 0
        return self._is_last_measured

    def _is_for_all(self, ids: Tensor) -> bool:
        """Whether a table is asked once for all examples; as many as these may be one of each."""
        sizes = tuple(ids.shape)
        if len(sizes) == 1:
            return sizes[0] != self._num_examples
        return len(sizes) == 2 and sizes[0] == 1 < self._num_examples

    def _input(self, path: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Tensor:
        inputs = [each for each in (*args, *options.values()) if isinstance(each, Tensor)]
        if len(inputs) != 1:
            raise _not_told(f"{path!r} is called with {len(inputs)} tensors")
        return inputs[0]

    def _require_examples(self, watched: WatchedModule, x: Tensor) -> None:
        num_dims = 2 if isinstance(watched.module, nn.Embedding) else 3
        if x.dim() < num_dims or x.shape[0] != self._num_examples:
            raise error(
                "noise-scale-examples",
                f"{watched.path!r} gets an input of the shape {tuple(x.shape)}, whose first dim "
                f"does not count the {self._num_examples} examples",
                notes=("which tokens belong to which example cannot be seen there",),
                help="train without the noise scale, or write a forward whose modules get inputs "
                "of (examples, tokens, features), and a table of positions (1, tokens)",
            )


class _Saved(torch.autograd.Function):
    """Saves a tensor for a backward that never comes."""

    @staticmethod
    def forward(ctx: FunctionCtx, anchor: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return anchor.clone()


def _arrived(watched: WatchedModule, norms: ExampleNorms, saved: list[Any], g: Tensor) -> None:
    """The gradient of a module's output has arrived."""
    [x] = saved.pop().saved_tensors
    is_tied = watched.is_tied
    with torch.no_grad():
        if watched.norm is not None:
            _add_norm_layer(watched, norms, x, g)
            return
        if isinstance(watched.module, nn.Embedding):
            assert watched.weight is not None
            if watched.module.padding_idx is not None:
                # torch leaves the row of the padding without a gradient.
                g = g.masked_fill((x == watched.module.padding_idx)[..., None], 0.0)
            flat = g.flatten(1, -2)
            norms.add_embedding(watched.weight, x.flatten(1), flat, is_tied=is_tied)
            return
        if watched.weight is not None:
            x_BTD, g_BTF = x.flatten(1, -2), g.flatten(1, -2)
            norms.add_linear(watched.weight, x_BTD, g_BTF, is_tied=is_tied)
        if watched.bias is not None:
            norms.add(watched.bias, of_bias(g))


def _add_norm_layer(watched: WatchedModule, norms: ExampleNorms, x: Tensor, g: Tensor) -> None:
    assert watched.norm is not None
    num_dims = len(watched.norm.shape)
    if watched.weight is not None:
        normalised = watched.norm.normalise(x.float())
        norms.add(watched.weight, of_norm_weight(normalised, g, num_dims))
    if watched.bias is not None:
        norms.add(watched.bias, of_bias(g, num_dims))


def _shown(names: list[str]) -> str:
    more = len(names) - MAX_SHOWN
    return ", ".join(map(repr, names[:MAX_SHOWN])) + (f" and {more} more" if more > 0 else "")


def _not_told(message: str) -> OpenwaferError:
    return error(
        "noise-scale-layers",
        message,
        notes=("known are normalisation layers, linear maps and embeddings, called once each",),
        help="measure normalisation layers alone, or train without the noise scale",
    )


def of_norm_weight(normalised: Tensor, gradient: Tensor, num_weight_dims: int) -> Tensor:
    """Of the weight of a normalisation layer.

    Args:
        normalised: (B, ..., weight's dims), as it was before weights.
        gradient: of the layer's output, of the same shape.
        num_weight_dims: how many dims the weight has.
    """
    return of_bias(normalised * gradient.to(normalised.dtype), num_weight_dims)


def of_bias(gradient: Tensor, num_weight_dims: int = 1) -> Tensor:
    """Of what is added to each token: ``gradient`` is (B, ..., bias's dims)."""
    between = tuple(range(1, gradient.dim() - num_weight_dims))
    by_example = gradient.float().sum(between) if between else gradient.float()
    return by_example.flatten(1).square().sum(1)


def of_linear(x_BTD: Tensor, gradient_BTF: Tensor) -> Tensor:
    """Of a linear map's weight; one example after the other, as each is as large as the weight."""
    norms = [
        torch.mm(gradient_TF.T, x_TD).square().sum()
        for x_TD, gradient_TF in zip(x_BTD.float(), gradient_BTF.float(), strict=True)
    ]
    return torch.stack(norms)


def of_embedding(ids_BT: Tensor, gradient_BTD: Tensor) -> Tensor:
    """Of a table of embeddings: rows of tokens that occur twice in an example are added first."""
    num_examples = ids_BT.shape[0]
    example_BT = torch.arange(num_examples, device=ids_BT.device)[:, None].expand_as(ids_BT)
    pairs = torch.stack((example_BT.flatten(), ids_BT.flatten()))
    rows, row_of_token = torch.unique(pairs, dim=1, return_inverse=True)
    gradient_ND = gradient_BTD.float().flatten(0, 1)
    sums = gradient_ND.new_zeros(rows.shape[1], gradient_ND.shape[1])
    squares = sums.index_add_(0, row_of_token, gradient_ND).square().sum(1)
    return squares.new_zeros(num_examples).index_add_(0, rows[0], squares)


def rows_of_linear(x_BTD: Tensor, gradient_BTF: Tensor, ids_BS: Tensor) -> Tensor:
    """Rows of each example's gradient of a linear map's weight, (B, S, D).

    Of a weight that is also a table of embeddings: the rows of the tokens that the example has.
    """
    chosen_BTS = gradient_BTF.float().gather(
        2, ids_BS[:, None, :].expand(-1, gradient_BTF.shape[1], -1)
    )
    return torch.bmm(chosen_BTS.transpose(1, 2), x_BTD.float())
