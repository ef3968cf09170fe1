"""Groups of a model's parameters, as the Model Zoo makes them for its optimizers."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any, Final

from torch import nn

from openwafer.diagnostics import error

_NORMS: Final = (
    nn.LayerNorm,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.SyncBatchNorm,
)


def param_groups(
    model: nn.Module, weight_decay: float, tagged: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Parameters that train, in groups with and without weight decay, by tags and scales.

    Biases and the weights of norms do not decay: of torch's norms, and of modules named ``RMSNorm``
    in any library. A model of the Model Zoo that is parametrized by muP says in its
    ``lr_adjustment_groups`` what multiplies the learning rate of which parameters; groups have it
    as ``"adjust_learning_rate"``.

    Args:
        model: whose parameters they are.
        weight_decay: of those that decay.
        tagged: mappings of ``params``, one glob or several, and ``tag``, by which schedulers choose
            groups. A glob may stand anywhere in a name.

    Raises:
        OpenwaferError: ``trainer-groups`` where a glob matches nothing.
    """
    norms = [name for name, module in model.named_modules() if _is_norm(module)]
    tags, scales = _tags(model, tagged), _scales(model)
    groups = defaultdict[tuple[frozenset[str], bool, float | None], list[nn.Parameter]](list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = "bias" not in name and name.rpartition(".")[0] not in norms
            groups[frozenset(tags[name]), decays, scales.get(name)].append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": weight_decay if decays else 0.0,
            **({"tags": set(own)} if own else {}),
            **({} if scale is None else {"adjust_learning_rate": scale}),
        }
        for (own, decays, scale), parameters in groups.items()
    ]


def _scales(model: nn.Module) -> Mapping[str, float]:
    """What multiplies the learning rate of each parameter; empty where nothing does."""
    found: Mapping[str, Any] = getattr(model, "lr_adjustment_groups", None) or {}
    # Those of releases before 2.3 are globs, whose factors a config says.
    scaled = [one for one in found.values() if getattr(one, "scale", 1.0) != 1.0]
    if not scaled:
        return {}
    return {
        name: next((one.scale for one in scaled if one.param_filter(name, parameter)), 1.0)
        for name, parameter in model.named_parameters()
    }


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, _NORMS) or type(module).__name__.endswith("RMSNorm")


def _tags(model: nn.Module, tagged: Sequence[Mapping[str, Any]]) -> Mapping[str, set[str]]:
    tags = defaultdict[str, set[str]](set)
    for one in tagged:
        globs = [one["params"]] if isinstance(one["params"], str) else one["params"]
        found = [
            name
            for name, _ in model.named_parameters()
            if any(fnmatch(name, f"*{glob}*") for glob in globs)
        ]
        if not found:
            raise error(
                "trainer-groups",
                f"no parameter of the {type(model).__name__} matches {globs} of the tag "
                f"{one['tag']!r}",
                help="give globs of names as model.named_parameters() has them",
            )
        for name in found:
            tags[name].add(one["tag"])
    return tags
