"""Modules of experts as a rank can compute them for others, with nothing but their rows.

Such a module belongs to transformers, whose code sorts rows by expert, multiplies each group by the
expert's first weight, applies a gate, multiplies by the second, and goes on with the products. What
it does before and behind is its own matter: the weights of a token, and the order of its sums.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

UP: Final = "gate_up_proj"
DOWN: Final = "down_proj"
GATE: Final = "_apply_gate"
IMPLEMENTATION: Final = "grouped_mm"


@dataclass(frozen=True)
class ExpertModule:
    """One module of experts.

    Attributes:
        path: in the model.
        num_experts: how many it has.
        width_in, width_out: elements of a row and of its product.
        dtype: of rows and weights.
        gate: what is between the two products, row by row.
        trained: which of :data:`UP` and :data:`DOWN` get gradients.
    """

    path: str
    num_experts: int
    width_in: int
    width_out: int
    dtype: torch.dtype
    gate: Callable[[Tensor], Tensor]
    trained: tuple[str, ...]

    def weight(self, attribute: str) -> str:
        """Name in the model of one of its two weights."""
        return f"{self.path}.{attribute}" if self.path else attribute


def expert_modules(model: nn.Module, names: Iterable[str]) -> Mapping[str, ExpertModule]:
    """The modules of these weights by path, in the model's order; see :func:`why_fetched`."""
    paths = dict.fromkeys(name.rpartition(".")[0] for name in names)
    return {path: _expert_module(path, model.get_submodule(path)) for path in paths}


def _expert_module(path: str, module: nn.Module) -> ExpertModule:
    up, down = module.get_parameter(UP), module.get_parameter(DOWN)
    _, rows, columns = up.shape
    width_in = rows if module.is_transposed else columns
    return ExpertModule(
        path=path,
        num_experts=len(up),
        width_in=width_in,
        width_out=down.shape[2 if module.is_transposed else 1],
        dtype=up.dtype,
        gate=getattr(module, GATE),
        trained=tuple(name for name in (UP, DOWN) if module.get_parameter(name).requires_grad),
    )


def why_fetched(model: nn.Module, names: Iterable[str], num_ranks: int) -> str | None:
    """Why ranks cannot compute the experts of these weights for each other; ``None`` if they can.

    Args:
        model: has the weights, each of them by expert.
        names: of the weights.
        num_ranks: how many ranks there are.
    """
    by_module: dict[str, set[str]] = {}
    for name in names:
        path, _, attribute = name.rpartition(".")
        by_module.setdefault(path, set()).add(attribute)
    for path, attributes in by_module.items():
        reason = _why_not(model.get_submodule(path), attributes, num_ranks)
        if reason is not None:
            return f"{path}: {reason}"
    return None


def has_bare_rows(module: nn.Module) -> bool:
    """Whether the library's code hands rows on from product to product as they are."""
    return hasattr(module, "_is_expert_parallel")


def _why_not(module: nn.Module, attributes: set[str], num_ranks: int) -> str | None:
    implementation = getattr(
        getattr(module, "config", None), "_experts_implementation", "its class's own"
    )
    if attributes != {UP, DOWN}:
        return f"it is not one of the two weights {UP} and {DOWN}, each by expert"
    if implementation != IMPLEMENTATION:
        return f"experts_implementation is {implementation}, not {IMPLEMENTATION}"
    if not has_bare_rows(module):
        return "transformers before 5.18 masks the rows between its products"
    if not module.has_gate or module.has_bias or module._is_expert_parallel:  # noqa: SLF001
        return "its experts have a bias, or no gate"
    num_experts = len(module.get_parameter(UP))
    if num_experts < num_ranks:
        return f"{num_experts} experts are fewer than {num_ranks} systems"
    dtypes = {module.get_parameter(name).dtype for name in attributes}
    return None if len(dtypes) == 1 else "its weights have several dtypes"
