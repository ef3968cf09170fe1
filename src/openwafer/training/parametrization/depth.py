"""Which parameters are in branches that repeat with the number of layers, and how often.

Two forwards show it, of models that differ in their number of layers alone.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, Final

from torch import Tensor, nn
from torch.autograd.graph import Node

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.parametrization.observation import observe

LEAF: Final = "torch::autograd::AccumulateGrad"
TABLE: Final = "Embedding"
SUM: Final = "Add"
PRODUCTS: Final = frozenset(
    ("Mm", "Addmm", "Bmm", "Baddbmm", "Addmv", "Mv", "Convolution", "GroupedMm", "Einsum")
)
# What passes a tensor on as it is.
VIEWS: Final = {
    *("View", "UnsafeView", "ReshapeAlias", "Transpose", "T", "Permute", "Expand", "Clone"),
    *("ToCopy", "Alias", "Squeeze", "Unsqueeze", "Slice", "Select", "Split", "Unbind"),
    "AsStrided",
}
# What is twice as large where all that goes in is.
LINEAR: Final = {"Neg", "Sum", "Index", "IndexSelect", "IndexAdd", "IndexPut", "Cat"}
SCALED: Final = frozenset(("Mul", "Div"))
# Norms that multiply by a gain, and add a bias, themselves.
NORMS: Final = frozenset(("NativeLayerNorm", "FusedRmsNorm", "NativeGroupNorm"))


@dataclass(frozen=True)
class Branch:
    """What one residual sum adds to its stream.

    Attributes:
        stream: number of the stream, in the order of the forward.
        parameters: names of those that have a part in it.
        ends: names of those that it is proportional to, taken all at once; none where it is
            proportional to none.
        multiples: nodes of the graph whose results are proportional to these too.
    """

    stream: int
    parameters: frozenset[str]
    ends: frozenset[str]
    multiples: frozenset[Node] = field(repr=False)


@dataclass(frozen=True)
class Branches:
    """The residual branches of a model.

    Attributes:
        branches: in the order of the forward.
        num_streams: that they add to.
        outside: names of the parameters that have a part in the loss outside of them.
        unclear: names of parameters that add to a stream in a way that makes no branch.
    """

    branches: tuple[Branch, ...]
    num_streams: int
    outside: frozenset[str]
    unclear: frozenset[str]


@dataclass(frozen=True)
class _Residual:
    node: Node
    skip: Node
    branch: Node
    stream: int


@dataclass(frozen=True)
class _Facts:
    """Of a node, as sets of bits.

    Attributes:
        reads: parameters that it depends on.
        forks: nodes with several readers that it depends on.
        behind: those of them with a product with parameters in between.
        along: those of them with nothing but sums in between.
        stream: that the node belongs to.
    """

    reads: int = 0
    forks: int = 0
    behind: int = 0
    along: int = 0
    stream: int | None = None


def find_branches(loss: Tensor, model: nn.Module) -> Branches:
    """Find the residual branches of a model.

    Args:
        loss: with the graph of the forward.
        model: whose forward it was.
    """
    assert loss.grad_fn is not None
    graph = _Graph(loss.grad_fn, {id(p): name for name, p in model.named_parameters()})
    for node in graph.order:
        graph.facts[node] = graph.learn(node)
    return graph.found()


class _Graph:
    def __init__(self, root: Node, names: Mapping[int, str]) -> None:
        self.root = root
        self.names = names
        self.order = list(_inputs_first(root))
        readers: dict[Node, int] = {}
        for node in self.order:
            for each in _inputs(node):
                readers[each] = readers.get(each, 0) + 1
        shared = (node for node in self.order if readers.get(node, 0) > 1 and not _is_leaf(node))
        self.fork_bits = {node: 1 << number for number, node in enumerate(shared)}
        self.leaf_bits = {name: 1 << number for number, name in enumerate(names.values())}
        self.facts: dict[Node, _Facts] = {}
        self.residuals: dict[Node, _Residual] = {}
        self.unclear: set[Node] = set()

    def learn(self, node: Node) -> _Facts:
        """The facts of a node whose inputs' are known."""
        if _is_leaf(node):
            return _Facts(reads=self.leaf_bits.get(self.name_of(node), 0))
        inputs = [self.facts[each] for each in _inputs(node)]
        own = self.fork_bits.get(node, 0)
        reads = _union(each.reads for each in inputs)
        forks = _union(each.forks for each in inputs)
        behind = _union(each.behind for each in inputs)
        if self.weights(node):
            behind |= forks
        along, stream = 0, None
        if _kind(node) in VIEWS:
            along, stream = inputs[0].along, inputs[0].stream
        elif _kind(node) == SUM:
            along, stream = self._sum(node)
        return _Facts(reads, forks | own, behind, along | own, stream)

    def _sum(self, node: Node) -> tuple[int, int | None]:
        """What leads to a sum with nothing but sums in between, and the stream that it is in."""
        inputs = _inputs(node)
        facts = [self.facts[each] for each in inputs]
        found = [
            (skip, branch)
            for skip, branch in ((0, 1), (1, 0))
            if len(inputs) > 1 and self._is_residual(facts[skip].along, inputs[branch])
        ]
        if not found:
            streams = {each.stream for each in facts} - {None}
            stream = next(iter(streams)) if len(streams) == 1 else None
            return _union(each.along for each in facts), stream
        if len(found) > 1:
            self.unclear.add(node)
        skip, branch = found[0]
        own = facts[skip].stream
        if own is None:
            own = len({each.stream for each in self.residuals.values()})
        self.residuals[node] = _Residual(node, inputs[skip], inputs[branch], own)
        return facts[skip].along, own

    def _is_residual(self, along: int, branch: Node) -> bool:
        """Whether a branch depends on what it is added to, and on nothing later than that.

        A bias of scores that all layers add, as T5's, is such a later one's own input.
        """
        if not along & self.facts[branch].behind:
            return False
        seen, stack = set(), [branch]
        while stack:
            node = stack.pop()
            if node in seen or _is_leaf(node) or self.fork_bits.get(node, 0) & along:
                continue
            seen.add(node)
            if node not in self.residuals:
                stack += _inputs(node)
            elif self.facts[node].behind & along:
                return False
        return True

    def found(self) -> Branches:
        """The branches, once the facts of all nodes are known."""
        trunk = _union(self.facts[each.skip].along for each in self.residuals.values())
        stops = {node for node, bit in self.fork_bits.items() if bit & trunk}
        stops |= self.residuals.keys()
        branches = []
        for residual in self.residuals.values():
            multiples: set[Node] = set()
            ends = self.ends(residual.branch, multiples)
            inside = self.parameters([residual.branch], stops)
            branches.append(
                Branch(residual.stream, inside, ends or frozenset(), frozenset(multiples))
            )
        streams = {each.stream for each in branches}
        outside = self.parameters([self.root, *self.residuals], set())
        unclear = self.parameters(self.unclear | self.odd_sums(), stops - self.unclear)
        return Branches(tuple(branches), len(streams), outside, unclear)

    def odd_sums(self) -> set[Node]:
        """What is added to the streams, behind products with parameters, and is no branch."""
        found: set[Node] = set()
        seen: set[Node] = set()
        stack = [each.skip for each in self.residuals.values()]
        while stack:
            node = stack.pop()
            if node in seen or node in self.residuals or _kind(node) not in VIEWS | {SUM}:
                continue
            seen.add(node)
            inputs = _inputs(node)
            stack += inputs
            if _kind(node) == SUM:
                found |= {each for each in inputs if self.facts[each].behind}
        return found

    def parameters(self, starts: Iterable[Node], stops: set[Node]) -> frozenset[str]:
        """Names of those that lead to some nodes, by no branch of a residual sum."""
        found, seen, stack = set(), set(), list(starts)
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if _is_leaf(node):
                found.add(self.name_of(node))
            elif node in self.residuals and not stops:
                stack.append(self.residuals[node].skip)
            elif node not in stops:
                stack += _inputs(node)
        return frozenset(found - {""})

    def ends(self, node: Node, multiples: set[Node]) -> frozenset[str] | None:
        """The parameters that a node is proportional to; ``None`` where there are none."""
        kind = _kind(node)
        inputs = _inputs(node)
        found = None
        if _is_leaf(node):
            found = frozenset((self.name_of(node),))
        elif weights := self.weights(node):
            found = weights
        elif kind in NORMS:
            found = frozenset(filter(None, map(self.leaf, inputs[1:]))) or None
        elif kind in SCALED and len(inputs) > 1:
            found = self._factor_ends(kind, inputs, multiples)
        elif inputs and (kind in VIEWS | LINEAR | SCALED or (kind == SUM and len(inputs) > 1)):
            parts = [self.ends(each, multiples) for each in inputs]
            if all(part is not None for part in parts):
                found = frozenset[str]().union(*(part for part in parts if part is not None))
        if found is not None:
            multiples.add(node)
        return found

    def _factor_ends(
        self, kind: str, factors: list[Node], multiples: set[Node]
    ) -> frozenset[str] | None:
        """Of a product of two: those of one factor that the other does not depend on."""
        found = []
        for factor, other in (factors, factors[::-1])[: 1 if kind == "Div" else 2]:
            nodes: set[Node] = set()
            ends = self.ends(factor, nodes)
            if ends and not self.facts[other].reads & _union(self.leaf_bits[e] for e in ends):
                found.append((ends, nodes))
        if len(found) != 1:
            return None
        multiples |= found[0][1]
        return found[0][0]

    def weights(self, node: Node) -> frozenset[str]:
        """Names of the parameters that a node multiplies by as matrices, and of a bias."""
        if _kind(node) not in PRODUCTS:
            return frozenset()
        return frozenset(filter(None, map(self.leaf, _inputs(node))))

    def leaf(self, node: Node) -> str | None:
        """The name of the parameter that a node is a view of."""
        while _kind(node) in VIEWS and _inputs(node):
            node = _inputs(node)[0]
        return self.name_of(node) if _is_leaf(node) else None

    def name_of(self, node: Node) -> str:
        leaf: Any = node
        return self.names.get(id(leaf.variable), "")


def _inputs_first(root: Node) -> Iterator[Node]:
    seen: set[Node] = set()
    stack = [(root, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(each, False) for each in _inputs(node)]


def _inputs(node: Node) -> list[Node]:
    return [each for each, _ in node.next_functions if each is not None]


def _is_leaf(node: Node) -> bool:
    return node.name() == LEAF


def _kind(node: Node) -> str:
    return re.sub(r"Backward\d*$", "", node.name())


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


REMEDY: Final = "leave the number of layers out of base: it then is the model's own"
Run = Callable[[nn.Module], Tensor]


@dataclass(frozen=True)
class Depth:
    """Of a parameter; see ``Role``."""

    factor: float = 1.0
    ends_branch: bool = False


@dataclass(frozen=True)
class _Use:
    """In how many branches of which stream a parameter is, and whether one ends with it."""

    stream: int
    count: int
    ends_branch: bool


@dataclass(frozen=True)
class Layers:
    """The sequences of modules that are longer in a model than in its base model.

    Attributes:
        paths: of these sequences.
    """

    paths: tuple[str, ...]

    def starred(self, name: str) -> str:
        """A name with a star for the number of its layer."""
        for path in self.paths:
            number, *rest = name.removeprefix(f"{path}.").split(".")
            if name.startswith(f"{path}.") and number.isdecimal():
                return ".".join((path, "*", *rest))
        return name


def layers_of(shallow: nn.Module, deep: nn.Module) -> Layers:
    """The layers of a model that differs from its base model in their number alone."""
    before, lengths = sequence_lengths(shallow), sequence_lengths(deep)
    return Layers(tuple(path for path in lengths if lengths[path] != before.get(path)))


def sequence_lengths(model: nn.Module) -> dict[str, int]:
    """By path, how many modules each sequence of them has."""
    return {
        path: len(module)
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
    }


def depths_of(
    shallow: nn.Module, deep: nn.Module, ratios: Collection[float], run: Run
) -> dict[str, Depth]:
    """The depth of each parameter of a model, by name.

    Args:
        shallow: with the layers of the base model.
        deep: with the model's number of layers, else the same.
        ratios: how many times as many these may be.
        run: calls a model with made-up inputs, and returns the loss.

    Raises:
        OpenwaferError: ``mup-depth`` for what there is no rule for, by name.
    """
    _require_same_numbers(shallow, deep, run)
    few, many = find_branches(run(shallow), shallow), find_branches(run(deep), deep)
    factors = _stream_factors(few, many, ratios)
    layers = layers_of(shallow, deep)
    uses, uses_before = _uses(deep, layers, many, factors), _uses(shallow, layers, few, factors)
    depths = {}
    for name, parameter in deep.named_parameters():
        use, before = uses[layers.starred(name)], uses_before.get(layers.starred(name))
        depths[name] = Depth()
        if use is None and layers.starred(name) != name and parameter.requires_grad:
            raise _no_rule(f"{name!r} repeats with the layers and is in no residual branch")
        if use is not None and parameter.requires_grad:
            if before is None or use.stream != before.stream:
                raise _no_rule(f"{name!r} is in a branch that the base model does not have")
            depths[name] = _depth(name, use, before, factors[use.stream])
    return depths


def require_same_branches(base: nn.Module, delta: nn.Module, run: Run) -> None:
    """Refuse a base that makes layers repeat more often without parameters of their own.

    Raises:
        OpenwaferError: ``mup-depth``.
    """
    few, many = (len(find_branches(run(each), each).branches) for each in (base, delta))
    if few != many:
        raise _no_rule(
            "layers share their weights",
            f"{few} residual branches at the base widths, {many} at twice these",
        )


def stds_by_layer(
    shallow: Mapping[str, float | None], names: Collection[str], layers: Layers
) -> dict[str, float | None]:
    """What the base model draws with, for the parameters of a model of other depth.

    Args:
        shallow: what each parameter of the base model is drawn with.
        names: of the model's parameters.
        layers: of the model.

    Raises:
        OpenwaferError: ``mup-depth`` where layers draw with different deviations.
    """
    found: dict[str, set[float | None]] = defaultdict(set)
    for name, std in shallow.items():
        found[layers.starred(name)].add(std)
    stds = {}
    for name in names:
        drawn = found[layers.starred(name)]
        if len(drawn) > 1:
            raise _no_rule(f"{name!r} is drawn in other ways from layer to layer of the base model")
        if not drawn:
            raise _no_rule(f"the base model has no parameter such as {name!r}")
        [stds[name]] = drawn
    return stds


def _depth(name: str, use: _Use, before: _Use, factor: float) -> Depth:
    if use.ends_branch and (use.count, before.count) != (1, 1):
        raise _no_rule(f"{use.count} branches end with {name!r}")
    return Depth(factor * before.count / use.count, use.ends_branch)


def _stream_factors(few: Branches, many: Branches, ratios: Collection[float]) -> dict[int, float]:
    """How many times as many branches each stream has; 1 for those that stay as they are."""
    for found in (few, many):
        if found.unclear:
            raise _no_rule(f"{min(found.unclear)!r} adds to the residual in no branch of its own")
    if not many.num_streams:
        raise _no_rule("the forward has no sum h + branch(h) with weights in the branch")
    if few.num_streams != many.num_streams:
        raise _no_rule(
            "the sum of a layer does not reach the next one as it is, as where norms follow the "
            "sum (post-norm)",
            f"{few.num_streams} sums are changed with the layers of base, "
            f"{many.num_streams} with the model's",
        )
    before, counts = (Counter(each.stream for each in found.branches) for found in (few, many))
    factors = {stream: counts[stream] / before[stream] for stream in counts}
    for stream, factor in factors.items():
        if factor != 1 and not any(math.isclose(factor, ratio) for ratio in ratios):
            raise _no_rule(
                "the residual branches do not repeat as often as the layers",
                f"{before[stream]} with the layers of base, {counts[stream]} with the model's",
            )
    for branch in many.branches:
        if factors[branch.stream] != 1 and not branch.ends:
            raise _no_rule(
                f"the residual branch of {min(branch.parameters)!r} ends with no weights that "
                "multiply all of it"
            )
    return factors


def _uses(
    model: nn.Module, layers: Layers, found: Branches, factors: Mapping[int, float]
) -> dict[str, _Use | None]:
    """What the parameters are to branches that repeat, by starred name."""
    reached = found.outside.union(*(branch.parameters for branch in found.branches))
    by_name: dict[str, _Use] = {}
    for branch in found.branches:
        if factors[branch.stream] == 1:
            continue
        for name in branch.parameters:
            own = by_name.get(name, _Use(branch.stream, 0, ends_branch=False))
            if name in found.outside or own.stream != branch.stream:
                raise _no_rule(f"{name!r} has a part both in a residual branch and elsewhere")
            ends = own.ends_branch or name in branch.ends
            by_name[name] = _Use(own.stream, own.count + 1, ends)
    uses: dict[str, _Use | None] = {}
    for name, parameter in model.named_parameters():
        use = by_name.get(name)
        if parameter.requires_grad and name not in reached:
            raise _no_rule(f"{name!r} has no part in the forward of made-up tokens")
        if parameter.requires_grad and uses.setdefault(layers.starred(name), use) != use:
            raise _no_rule(f"{name!r} is used in another way than in the layers before")
        uses.setdefault(layers.starred(name), use)
    return uses


def _require_same_numbers(shallow: nn.Module, deep: nn.Module, run: Run) -> None:
    """Refuse a forward whose own numbers follow the number of layers, or that of a layer."""
    layers = layers_of(shallow, deep)
    found: list[dict[str, set[float]]] = []
    for model in (shallow, deep):
        seen = observe(model, run)
        numbers: dict[str, set[float]] = defaultdict(set)
        for (path, operation), values in seen.scalars.items():
            numbers[f"{operation} {layers.starred(path)}"] |= values
        for (path, operation), sizes in seen.sums.items():
            numbers[f"{operation} {layers.starred(path)}"] |= {float(size) for size in sizes}
        found.append(numbers)
    for key in sorted(found[0].keys() | found[1].keys()):
        if found[0][key] != found[1][key]:
            operation, _, path = key.partition(" ")
            raise _no_rule(
                f"a number of the forward's own follows the layers, in {path or 'the model'!r} "
                f"({operation})",
                f"{sorted(found[0][key])} with the layers of base, {sorted(found[1][key])} with "
                "the model's",
            )


def _no_rule(why: str, *notes: str) -> OpenwaferError:
    return error("mup-depth", f"muP has no rule for this depth: {why}", notes=notes, help=REMEDY)
