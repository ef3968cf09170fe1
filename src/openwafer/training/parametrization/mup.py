"""muP of one model: what is scaled, from a base model and another of twice its widths."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from openwafer.diagnostics import error
from openwafer.training.parametrization.depth import Depth
from openwafer.training.parametrization.observation import Observation, observe
from openwafer.training.parametrization.roles import (
    Kind,
    Role,
    Shape,
    branch_factor,
    roles_of,
    std_factor,
)
from openwafer.training.parametrization.scalars import (
    AttentionRule,
    Pair,
    attention_rules,
    own_exponent,
    require_same_scalars,
    require_same_sums,
    scale_of_head,
    scales_of_table,
    take_rules,
)

Run = Callable[[nn.Module], object]


@dataclass(frozen=True)
class Mup:
    """What muP does to a model.

    Attributes:
        roles: of its parameters, by name.
        stds: standard deviations that the base model's weights are drawn with, by name; ``None``
            for those that are not drawn.
        attention: scales of attention that follow the size of heads, by module.
        multipliers: of the inputs of linear modules that are outputs of the model, by module.
        foldings: of the parameters of a finished model, by name, in place of the multipliers.
        unfolded: modules with a multiplier that no parameter can stand for.
    """

    roles: Mapping[str, Role]
    stds: Mapping[str, float | None]
    attention: Mapping[str, AttentionRule]
    multipliers: Mapping[str, float]
    foldings: Mapping[str, float]
    unfolded: tuple[str, ...]

    def with_depths(self, depths: Mapping[str, Depth]) -> "Mup":
        """The same where layers repeat more often than in the base model."""
        roles = {
            name: replace(role, depth=depths[name].factor, ends_branch=depths[name].ends_branch)
            for name, role in self.roles.items()
        }
        return replace(self, roles=roles)

    def with_densities(self, densities: Mapping[str, float]) -> "Mup":
        """The same where some weights are sparse, with the share of each that is kept.

        Raises:
            OpenwaferError: ``mup-sparsity`` for a sparse output.
        """
        roles = dict(self.roles)
        for name, density in densities.items():
            if roles[name].kind is Kind.OUTPUT:
                raise error(
                    "mup-sparsity",
                    f"muP has no rule for the sparse output {name!r}",
                    help="leave it dense: name the weights that shall be sparse, without this one",
                )
            roles[name] = replace(roles[name], density=density)
        return replace(self, roles=roles)


@dataclass(frozen=True)
class Scaled:
    """Multiplies the input of a linear module, as a hook before its forward."""

    multiplier: float

    def __call__(self, _module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The inputs with the first one multiplied."""
        return (inputs[0] * self.multiplier, *inputs[1:])


def analyse(
    base: nn.Module,
    delta: nn.Module,
    model: Mapping[str, Shape],
    stds: Mapping[str, float | None],
    run: Run,
) -> Mup:
    """Find out what muP does to a model.

    Args:
        base: the model with the base widths; what its weights are does not matter.
        delta: with twice these; its attention is changed.
        model: shapes of the parameters of the model itself.
        stds: of the draws of the base model.
        run: calls a model with made-up inputs.

    Raises:
        OpenwaferError: ``mup-...`` for what it has no rule for, by name.
    """
    seen, seen_delta = observe(base, run), observe(delta, run)
    attention = attention_rules(base, delta, seen, seen_delta)
    if attention:
        take_rules(delta, attention)
        seen_delta = observe(delta, run)
    shapes, delta_shapes = _shapes(base), _shapes(delta)
    roles = roles_of(shapes, delta_shapes, model, seen)
    multipliers: dict[str, float] = {}
    known: list[Pair] = []
    for name in roles:
        own = scales_of_table(name, seen, seen_delta)
        known += own
        role = roles[name] = _with_own_scale(roles[name], own_exponent(own))
        is_width = [a != b for a, b in zip(shapes[name], delta_shapes[name], strict=True)]
        outputs = _outputs(name, role, is_width, seen)
        if outputs:
            _require_no_attention(name, seen)
        if _have_modules(base, outputs):
            for path in outputs:
                width = role.fan_in if role.kind is Kind.OUTPUT else role.fan_out
                heads = scale_of_head(path, seen, seen_delta)
                known += heads
                multipliers[path] = role.own_scale * width ** -(1 + own_exponent(heads))
        elif role.kind is Kind.OUTPUT:
            roles[name] = replace(role, is_folded=True)
        else:
            raise _no_module(name, outputs)
    require_same_scalars(seen, seen_delta, attention, known)
    require_same_sums(seen, seen_delta)
    _require_no_bottleneck(roles, seen)
    foldings, unfolded = fold(base, roles, multipliers, seen)
    return Mup(roles, dict(stds), attention, multipliers, foldings, unfolded)


def take_mup(model: nn.Module, mup: Mup) -> None:
    """Scale the attention and the outputs of a model; its weights stay as they are."""
    take_rules(model, mup.attention)
    for path, multiplier in mup.multipliers.items():
        if multiplier != 1:
            model.get_submodule(path).register_forward_pre_hook(Scaled(multiplier))


@torch.no_grad()
def scale_initial_weights(model: nn.Module, mup: Mup, stds: Mapping[str, float | None]) -> None:
    """Give drawn weights the standard deviation that follows from the base model's.

    Args:
        model: with its weights as they were drawn.
        mup: of the model.
        stds: of these draws.

    Raises:
        OpenwaferError: ``mup-initial-weights`` where base and model do not draw the same weights.
    """
    for name, parameter in model.named_parameters():
        drawn, base = stds[name], mup.stds[name]
        # What is not trained, such as a table of sines, is a constant of the architecture.
        if not parameter.requires_grad:
            continue
        if (drawn is None) != (base is None):
            raise _other_draws(name, "are drawn in only one of the base model and the model")
        if drawn is None and parameter.numel() and not _is_constant(parameter):
            raise _other_draws(name, "are neither drawn in place nor all equal")
        scale = branch_factor(mup.roles[name])
        if drawn and base:
            scale = base * std_factor(mup.roles[name]) / drawn
        if scale != 1:
            parameter.mul_(scale)


def _is_constant(tensor: Tensor) -> bool:
    return bool((tensor == tensor.flatten()[0]).all())


def _other_draws(name: str, why: str) -> Exception:
    return error(
        "mup-initial-weights",
        f"muP scales initial weights, and those of {name!r} {why}",
        help="draw them with torch.nn.init.normal_ or uniform_, at all widths",
    )


def _with_own_scale(role: Role, exponent: float) -> Role:
    """A table's role where the model multiplies its rows by a power of the width: as if it did not.

    Its values are as many times smaller, so that what comes out of it is as large as in the base.
    """
    return replace(role, own_scale=role.fan_out**exponent)


def _outputs(name: str, role: Role, is_width: Sequence[bool], seen: Observation) -> list[str]:
    """Modules in which a parameter maps a width to something finite."""
    if role.kind is not Kind.OUTPUT and name not in seen.tables:
        return []
    found = seen.contractions.get(name, set())
    return sorted(each.path for each in found if any(is_width[dim] for dim in each.dims))


def _require_no_attention(name: str, seen: Observation) -> None:
    """Refuse keys or values of a fixed size, which flow to attention and to no output."""
    if seen.attended.get(name, set()) & seen.attention:
        raise error(
            "mup-width",
            f"{name!r} maps a width to attention of a size that no width in base decides on, "
            "so that it would be taken for an output of the model",
            help="name in base the number of heads of keys and values as well, in the same "
            "proportion as the width",
        )


def _require_no_bottleneck(roles: Mapping[str, Role], seen: Observation) -> None:
    """Refuse an output that is made wide again: a width was left out of base."""
    for name, role in roles.items():
        behind = sorted(seen.multiplied_by.get(name, set())) if role.kind is Kind.OUTPUT else []
        wider = [each for each in behind if roles[each].kind is Kind.INPUT]
        if wider:
            raise error(
                "mup-width",
                f"{name!r} maps a width to a size that no width in base decides on, and "
                f"{wider[0]!r} maps that to a width again",
                notes=(f"it is {role.shape}",),
                help="name in base the field that decides on this size",
            )


def _have_modules(model: nn.Module, paths: Sequence[str]) -> bool:
    """Whether each of them is a linear map and nothing else, whose input can be multiplied."""
    return all(isinstance(model.get_submodule(path), nn.Linear | Conv1D) for path in paths)


def _no_module(name: str, outputs: Sequence[str]) -> Exception:
    return error(
        "mup-output",
        f"{name!r} is a table of embeddings and an output as well, and {outputs[0] or 'the model'} "
        "multiplies by it without a linear module",
        help="multiply by it in an nn.Linear that has the table as its weight",
    )


def _shapes(model: nn.Module) -> dict[str, Shape]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def fold(
    model: nn.Module,
    roles: Mapping[str, Role],
    multipliers: Mapping[str, float],
    seen: Observation,
) -> tuple[dict[str, float], tuple[str, ...]]:
    """What multiplies parameters, so that a model without the multipliers computes the same.

    A head of its own is multiplied itself. A head that is a table of embeddings as well leaves it
    to the norm before it, where nobody else reads that norm.

    Returns:
        Factors by name of a parameter, and the modules for which there are none.
    """
    factors: dict[str, float] = {}
    unfolded = []
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    for path, multiplier in multipliers.items():
        name = name_of[model.get_submodule(path).get_parameter("weight")]
        norm = seen.sources.get(path)
        if roles[name].kind is Kind.OUTPUT:
            factors[name] = multiplier
        elif norm is not None and _is_proportional(model.get_submodule(norm)):
            weights = model.get_submodule(norm).named_parameters()
            factors |= {f"{norm}.{part}": multiplier for part, _ in weights}
        else:
            unfolded.append(path)
    return factors, tuple(unfolded)


@torch.no_grad()
def _is_proportional(norm: nn.Module) -> bool:
    """Whether a norm of half the weights puts out half as much: some add 1 to their weights."""
    halved = copy.deepcopy(norm)
    size = next(norm.parameters()).numel()
    for parameter in halved.parameters():
        parameter.mul_(0.5)
    inputs = torch.linspace(-1, 1, size).reshape(1, 1, size)
    return torch.allclose(halved(inputs), norm(inputs) / 2)
