"""What stays dense of a model whose sparsity names no weights."""

import re
from collections.abc import Callable, Iterator, Mapping

from torch import nn

from openwafer.diagnostics import Diagnostic, Severity, counted
from openwafer.training.session.parameter_groups import tables_of
from openwafer.training.stream.plan.experts import routers

CanBeSparse = Callable[[nn.Module], bool]


def dense_by_default(model: nn.Module, can_be_sparse: CanBeSparse) -> set[str]:
    """Names of embeddings, heads and routers, and of what no module makes sparse."""
    return {*_meant_dense(model), *(name for name, _ in _left(model, can_be_sparse))}


def remark_on_dense(
    model: nn.Module, can_be_sparse: CanBeSparse, num_elements: Mapping[str, int]
) -> Diagnostic | None:
    """A warning that names matrices which a sparsity without filter leaves dense, if it does.

    Args:
        model: in its dense form or the sparse one.
        can_be_sparse: whether the weight of a module can.
        num_elements: of all parameters of the dense form, by name.
    """
    meant = _meant_dense(model)
    left = {name: owner for name, owner in _left(model, can_be_sparse) if name not in meant}
    if not left:
        return None
    kinds = {re.sub(r"\b\d+\b", "*", name): owner for name, owner in left.items()}
    share = sum(num_elements[name] for name in left) / sum(num_elements.values())
    return Diagnostic(
        Severity.WARNING,
        "sparsity-dense",
        f"{counted(len(left), 'parameter')} with {share:.1%} of the model's weights stay "
        "dense, as only the weights of linear modules can be sparse",
        notes=tuple(f"{name}, of a {owner}" for name, owner in kinds.items()),
        help="experts that a module holds in one weight are among these; to leave them out in so "
        "many words, name the weights that shall be sparse in a filter",
    )


def _meant_dense(model: nn.Module) -> set[str]:
    tables = tables_of(model)
    names = {name for name, parameter in model.named_parameters() if id(parameter) in tables}
    return names | routers(model)


def _left(model: nn.Module, can_be_sparse: CanBeSparse) -> Iterator[tuple[str, str]]:
    """Name of each matrix that cannot be sparse, and the class of its module."""
    for name, parameter in model.named_parameters():
        path, _, attribute = name.rpartition(".")
        owner = model.get_submodule(path)
        if parameter.ndim >= 2 and not (attribute == "weight" and can_be_sparse(owner)):
            yield name, type(owner).__name__
