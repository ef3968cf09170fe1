"""How a model draws its parameters and uses them in a forward; no architecture is known here."""

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from openwafer.diagnostics import error
from openwafer.training.torch_private import TorchDispatchMode, Unguarded, pytree

PRODUCTS: Final = ("matmul", "__matmul__", "mm", "bmm", "grouped_mm", "_grouped_mm")
SUMS_WITH_PRODUCTS: Final = ("addmm", "baddbmm")
CONVOLUTIONS: Final = ("conv1d", "conv2d", "conv3d")
SOFTMAX: Final = "softmax"
SUMS: Final = (SOFTMAX, "sum", "log_softmax", "logsumexp", "norm", "vector_norm", "normalize")
# Others that add up elements of a tensor, along whatever dims: all of them are looked at.
MIXING: Final = frozenset(
    ("dot", "vdot", "inner", "mv", "tensordot", "cdist", "cosine_similarity", "bilinear")
)
TRANSFORMS: Final = "fft_"
DROPOUT: Final = "dropout"
JOINING: Final = ("cat", "stack")
ATTENTION: Final = "scaled_dot_product_attention"
SCALED: Final = {
    **dict.fromkeys(("mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"), "multiply"),
    **dict.fromkeys(("div", "div_", "__truediv__", "__itruediv__", "true_divide"), "divide"),
}
# Of these a parameter may be the operand without being multiplied as a matrix.
ELEMENTWISE: Final = {
    *SCALED,
    *("add", "add_", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "exp", "neg", "__neg__"),
    *("pow", "__pow__", "rsqrt", "sigmoid", "softplus", "cat", "float", "to", "type", "type_as"),
    *("layer_norm", "rms_norm", "group_norm", "batch_norm"),
}
VIEWS: Final = {
    *("__get__", "__getitem__", "view", "reshape", "transpose", "t", "permute", "contiguous"),
    *("unsqueeze", "squeeze", "chunk", "split", "unbind", "select", "narrow", "flatten"),
    *("unflatten", "expand", "expand_as", "repeat", "clone", "detach", "size", "dim", "stride"),
    *("numel", "__len__", "element_size", "get_device", "is_contiguous", "is_complex"),
    "is_floating_point",
}


@dataclass(frozen=True)
class Contraction:
    """A parameter as a matrix: the dims that are summed over, and the module that multiplies."""

    path: str
    dims: tuple[int, ...]


@dataclass
class Observation:
    """What one forward did.

    Attributes:
        contractions: by parameter name, every product in which it is a matrix.
        tables: names of parameters whose rows are looked up.
        touched: names of parameters that have a part in the forward.
        unknown: by parameter name, operations that take it in a way not understood.
        scalars: numbers that activations are multiplied or divided by, by module and operation.
        products: sizes summed over in products of two activations, by module.
        sums: sizes summed over in other ways, by module and operation.
        attention: modules that multiply activations with each other and take a softmax.
        head_scales: by module, the number that its input was multiplied by just before.
        table_scales: by table, the numbers that all rows found in it are multiplied by at once.
        sources: by module, the norm whose output is its input, and nobody else's.
        multiplied_by: by parameter, the parameters that multiply what its own product gave.
        attended: by parameter, the modules in which that is multiplied with other activations.
    """

    contractions: dict[str, set[Contraction]] = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    unknown: dict[str, str] = field(default_factory=dict)
    scalars: dict[tuple[str, str], set[float]] = field(default_factory=dict)
    products: dict[str, set[int]] = field(default_factory=dict)
    sums: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    attention: set[str] = field(default_factory=set)
    head_scales: dict[str, tuple[tuple[str, str], float]] = field(default_factory=dict)
    table_scales: dict[str, dict[tuple[str, str], float]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    multiplied_by: dict[str, set[str]] = field(default_factory=dict)
    attended: dict[str, set[str]] = field(default_factory=dict)


def observe(model: nn.Module, run: Callable[[nn.Module], object]) -> Observation:
    """Run a forward of a model with weights, and see what becomes of its parameters.

    Args:
        model: small, on the CPU.
        run: calls it with made-up inputs.
    """
    watch = _Watch(model)
    with watch.following_modules(model), watch:
        run(model)
    watch.finish()
    return watch.seen


class _Watch(TorchFunctionMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.seen = Observation()
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._path: list[str] = [""]
        # Results of a multiplication by a number; kept, so that none of their ids comes again.
        self._scaled: dict[int, tuple[Tensor, tuple[str, str], float]] = {}
        self._norms: dict[int, tuple[Tensor, str]] = {}
        self._lookups: dict[int, tuple[Tensor, str]] = {}
        self._unscaled: list[str] = []
        self._softmaxes: set[str] = set()
        self._readers: dict[str, set[tuple[str, str]]] = {}
        # Parameters whose products a tensor holds, the present operands hold, and its result is.
        self._holding: dict[int, tuple[Tensor, frozenset[str]]] = {}
        self._held: frozenset[str] = frozenset()
        self._made: set[str] = set()

    @contextmanager
    def following_modules(self, model: nn.Module) -> Iterator[None]:
        """Context in which the path of the module whose forward runs is known."""
        handles: list[RemovableHandle] = []
        path_of = {module: path for path, module in model.named_modules()}
        for path, module in model.named_modules():

            def enter(_module: nn.Module, _args: object, path: str = path) -> None:
                self._path.append(path)

            def leave(module: nn.Module, _args: object, output: object) -> None:
                self._path.pop()
                if isinstance(output, Tensor) and _is_norm(module):
                    self._norms[id(output)] = output, path_of[module]

            handles.append(module.register_forward_pre_hook(enter, prepend=True))
            handles.append(module.register_forward_hook(leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        name = getattr(func, "__name__", str(func))
        result = func(*args, **options)
        operands = pytree.tree_leaves((args, options))
        self._note_held(operands)
        self._note(name, args, options)
        self._pass_on(name, operands, result)
        self._follow_norms(name, args, result)
        if name == "embedding":
            self._note_lookup([*args, *options.values()], result)
        # What needs no gradient, such as the angles of positions, is no activation.
        if name in SCALED and isinstance(result, Tensor) and result.requires_grad:
            self._note_scalar(SCALED[name], args, result)
        return result

    def _note(self, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        # Some write the operands of a product by name.
        operands = [each for each in (*args, *options.values()) if isinstance(each, Tensor)]
        owners = {owner for each in operands if (owner := self._name_of(each)) is not None}
        self.seen.touched |= owners
        if name in PRODUCTS:
            self._multiply(operands[0], operands[1])
        elif name in SUMS_WITH_PRODUCTS:
            self._multiply(operands[1], operands[2])
            self._add_scalar("multiply", float(options.get("alpha", 1)))
        elif name == "linear":
            self._map(operands[0], operands[1])
        elif name in CONVOLUTIONS:
            self._convolve(operands[1])
        elif name == "embedding":
            self.seen.tables |= owners
        elif name == ATTENTION:
            self._attend(operands[0], options)
        elif name == "einsum":
            self._sum_products(args[0], operands)
        elif name in SUMS:
            self._sum(name, operands[0], args[1] if len(args) > 1 else options.get("dim"))
        elif name not in ELEMENTWISE | VIEWS:
            self._meet(name, operands, owners)

    def _meet(self, name: str, operands: Sequence[Tensor], owners: set[str]) -> None:
        """Note an operation that no rule is written for."""
        self.seen.unknown.update(dict.fromkeys(owners, name))
        if name in MIXING or name.startswith(TRANSFORMS):
            self._sum(name, operands[0], None)

    def _follow_norms(self, name: str, args: Sequence[Any], result: object) -> None:
        """Note who reads what a norm puts out; views of it and multiples are as it is."""
        for operand in args:
            if not isinstance(operand, Tensor) or id(operand) not in self._norms:
                continue
            norm = self._norms[id(operand)][1]
            if name in VIEWS or name in SCALED or name == DROPOUT:
                if isinstance(result, Tensor) and result.is_floating_point():
                    self._norms[id(result)] = result, norm
            else:
                self._readers.setdefault(norm, set()).add((self._path[-1], name))

    def _note_held(self, operands: Sequence[Any]) -> None:
        held = [self._holding[id(each)][1] for each in operands if id(each) in self._holding]
        self._held, self._made = frozenset().union(*held), set()

    def _pass_on(self, name: str, operands: Sequence[Any], result: object) -> None:
        """Note whose products a result holds: a new one, or as many elements as an operand's."""
        for source in self._held if self._made else ():
            self.seen.multiplied_by.setdefault(source, set()).update(self._made)
        sizes = {each.numel() for each in operands if id(each) in self._holding}
        for each in pytree.tree_leaves(result):
            is_kept = isinstance(each, Tensor) and (
                name in VIEWS or name in JOINING or each.numel() in sizes
            )
            if holds := frozenset(self._made) or (self._held if is_kept else None):
                self._holding[id(each)] = each, holds

    def finish(self) -> None:
        """Find attention, and the modules that alone read what a norm puts out."""
        self.seen.attention = self._softmaxes & self.seen.products.keys()
        for table in self._unscaled:
            self.seen.table_scales.pop(table, None)
        for norm, readers in self._readers.items():
            [(path, name), *others] = readers
            if not others and name == "linear":
                self.seen.sources[path] = norm

    def _map(self, inputs: Tensor, weight: Tensor) -> None:
        self._contract(weight, (weight.dim() - 1,))
        # A weight that is computed is an activation as any other.
        if self._name_of(weight) is None and weight.requires_grad:
            self._add_product(weight.shape[-1])
        scaled = self._scaled.get(id(inputs))
        if scaled is not None:
            self.seen.head_scales[self._path[-1]] = scaled[1], scaled[2]

    def _note_lookup(self, operands: Sequence[Any], result: Tensor) -> None:
        for owner in filter(None, map(self._name_of, operands)):
            self._lookups[id(result)] = result, owner
            self._unscaled.append(owner)

    def _attend(self, query: Tensor, options: Mapping[str, Any]) -> None:
        size = query.shape[-1]
        scale = options.get("scale")
        self._softmaxes.add(self._path[-1])
        self._add_product(size)
        self._add_scalar("multiply", float(size**-0.5 if scale is None else scale))

    def _convolve(self, weight: Tensor) -> None:
        self._contract(weight, tuple(range(1, weight.dim())))
        if self._name_of(weight) is None and weight.requires_grad:
            self._add_product(math.prod(weight.shape[1:]))

    def _sum(self, name: str, operand: Tensor, dim: object) -> None:
        if not operand.requires_grad or self._name_of(operand) is not None:
            return
        if name == SOFTMAX:
            self._softmaxes.add(self._path[-1])
        dims = [dim] if isinstance(dim, int) else dim
        if not isinstance(dims, list | tuple):
            dims = range(operand.dim())
        size = math.prod(operand.shape[each] for each in dims)
        self.seen.sums.setdefault((self._path[-1], name), set()).add(size)

    def _multiply(self, left: Tensor, right: Tensor) -> None:
        found = False
        for operand, dim in ((left, left.dim() - 1), (right, max(right.dim() - 2, 0))):
            if self._name_of(operand) is not None:
                self._contract(operand, (dim,))
                found = True
        if not found and (left.requires_grad or right.requires_grad):
            self._add_product(left.shape[-1])

    def _sum_products(self, equation: str, operands: Sequence[Tensor]) -> None:
        owners = {owner for each in operands if (owner := self._name_of(each)) is not None}
        self.seen.unknown.update(dict.fromkeys(owners, "einsum"))
        if owners:
            return
        inputs, _, output = equation.replace(" ", "").partition("->")
        for labels, operand in zip(inputs.split(","), operands, strict=True):
            for label, size in zip(labels, operand.shape, strict=False):
                if label not in output:
                    self._add_product(int(size))

    def _contract(self, weight: Tensor, dims: tuple[int, ...]) -> None:
        owner = self._name_of(weight)
        if owner is None:
            return
        own = owner_of(weight)
        found = tuple(d for dim in dims for d in _same_dims(own, weight, dim))
        if len(found) == len(dims):
            self._made.add(owner)
            contraction = Contraction(self._path[-1], found)
            self.seen.contractions.setdefault(owner, set()).add(contraction)
        else:
            self.seen.unknown[owner] = "a product with a view of it"

    def _add_product(self, size: int) -> None:
        for source in self._held:
            self.seen.attended.setdefault(source, set()).add(self._path[-1])
        self._held = frozenset()
        self.seen.products.setdefault(self._path[-1], set()).add(size)

    def _add_scalar(self, operation: str, value: float) -> None:
        self.seen.scalars.setdefault((self._path[-1], operation), set()).add(value)

    def _note_scalar(self, operation: str, args: Sequence[Any], result: Tensor) -> None:
        for operand in args:
            value = _number(operand)
            if value is not None:
                self._add_scalar(operation, value)
                self._note_table_scale(operation, args, value)
                self._scaled[id(result)] = result, (self._path[-1], operation), value

    def _note_table_scale(self, operation: str, args: Sequence[Any], value: float) -> None:
        for found in (self._lookups.pop(id(operand), None) for operand in args):
            if found is not None:
                self._unscaled.remove(found[1])
                scales = self.seen.table_scales.setdefault(found[1], {})
                scales[self._path[-1], operation] = value

    def _name_of(self, operand: object) -> str | None:
        if not isinstance(operand, Tensor):
            return None
        return self._names.get(id(owner_of(operand)))


def _is_norm(module: nn.Module) -> bool:
    """Whether a module may be one: it has vectors of weights, and no modules in it."""
    weights = [*module.parameters()]
    return bool(weights) and not [*module.children()] and all(each.dim() == 1 for each in weights)


def _same_dims(own: Tensor, view: Tensor, dim: int) -> list[int]:
    """Dims of a parameter that a dim of its view is."""
    if own is view:
        return [dim]
    size, stride = view.shape[dim], view.stride(dim)
    return [d for d in range(own.dim()) if own.shape[d] == size and own.stride(d) == stride]


def _number(operand: object) -> float | None:
    if isinstance(operand, int | float) and not isinstance(operand, bool):
        return float(operand)
    is_number = isinstance(operand, Tensor) and operand.dim() == 0 and not operand.requires_grad
    if is_number and isinstance(operand, Tensor) and operand.is_floating_point():
        return float(operand)
    return None


NORMAL: Final = "aten::normal_"
UNIFORM: Final = "aten::uniform_"
SCALE: Final = "aten::mul_"
FILLS: Final = ("aten::fill_", "aten::zero_")
COPY: Final = "aten::copy_"


@dataclass
class _Drawn:
    """Standard deviations of the draws that a tensor holds, and whether they cover it."""

    tensor: weakref.ref[Tensor]
    stds: list[float]
    is_known: bool = True


class Draws(Unguarded, TorchDispatchMode):
    """Context in which the draws of initial weights are recorded."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._drawn: dict[int, _Drawn] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        name = func._schema.name  # noqa: SLF001 - no public name
        if args and isinstance(args[0], Tensor):
            if torch.Tag.nondeterministic_seeded in func.tags:
                self._draw(name, args, options)
            elif name == SCALE and isinstance(args[1], int | float):
                self._scale(args[0], float(args[1]))
            elif name in FILLS or name == COPY:
                self._overwrite(args[0], is_known=name in FILLS)
        return func(*args, **options)

    def stds(self, model: nn.Module) -> dict[str, float | None]:
        """By parameter, the standard deviation of what it was drawn from.

        ``None`` where nothing was drawn, as for norms and biases.

        Raises:
            OpenwaferError: ``mup-initial-weights`` for weights of some other distribution.
        """
        return {name: self._std(name, parameter) for name, parameter in model.named_parameters()}

    def _std(self, name: str, parameter: Tensor) -> float | None:
        drawn = self._drawn.get(id(parameter))
        is_drawn = drawn is not None and drawn.tensor() is parameter
        if drawn is None or not is_drawn or not parameter.requires_grad:
            return None
        if not drawn.is_known or len(set(drawn.stds)) != 1:
            raise _unseen(name, "are not drawn from one normal or uniform distribution")
        return drawn.stds[0]

    def _draw(self, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        tensor = args[0]
        own = owner_of(tensor)
        bounds = _arguments(args, options)
        std = None
        if name == NORMAL:
            std = bounds[1]
        elif name == UNIFORM:
            std = abs(bounds[1] - bounds[0]) / math.sqrt(12)
        is_whole = tensor.numel() == own.numel()
        before = self._drawn.get(id(own))
        if is_whole or before is None or before.tensor() is not own:
            before = self._drawn[id(own)] = _Drawn(weakref.ref(own), [])
        before.stds.append(0.0 if std is None else std)
        before.is_known = before.is_known and std is not None

    def _overwrite(self, tensor: Tensor, *, is_known: bool) -> None:
        """Forget the draws of a tensor that is filled, and distrust one that is copied to."""
        own = owner_of(tensor)
        # Rows of zeros, as of a padding token, leave the others as they were drawn.
        if is_known and tensor.numel() == own.numel():
            self._drawn.pop(id(own), None)
        if not is_known:
            self._drawn[id(own)] = _Drawn(weakref.ref(own), [0.0], is_known=False)

    def _scale(self, tensor: Tensor, factor: float) -> None:
        own = owner_of(tensor)
        drawn = self._drawn.get(id(own))
        if drawn is None or drawn.tensor() is not own:
            return
        if tensor.numel() != own.numel():
            drawn.is_known = False
        drawn.stds = [std * abs(factor) for std in drawn.stds]


def owner_of(tensor: Tensor) -> Tensor:
    """The tensor that a view is of; a tensor that is no view itself."""
    base = tensor._base
    return tensor if base is None else base


def _arguments(args: Sequence[Any], options: Mapping[str, Any]) -> tuple[float, float]:
    """Mean and deviation, or lower and upper bound: torch's defaults are 0 and 1 for both."""
    first = args[1] if len(args) > 1 else options.get("mean", options.get("from", 0.0))
    second = args[2] if len(args) > 2 else options.get("std", options.get("to", 1.0))
    return float(first), float(second)


def _unseen(name: str, why: str) -> Exception:
    return error(
        "mup-initial-weights",
        f"muP scales the standard deviation of initial weights, and those of {name!r} {why}",
        help="draw them with torch.nn.init.normal_ or uniform_, or in a way that does so",
    )
