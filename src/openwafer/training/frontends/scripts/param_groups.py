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
    """Parameters that train, in groups with and without weight decay, by tags.

    Biases and the weights of norms do not decay: of torch's norms, and of modules named ``RMSNorm``
    in any library.

    Args:
        model: whose parameters they are.
        weight_decay: of those that decay.
        tagged: mappings of ``params``, one glob or several, and ``tag``, by which schedulers choose
            groups. A glob may stand anywhere in a name.

    Raises:
        OpenwaferError: ``trainer-groups`` where a glob matches nothing.
    """
    norms = [name for name, module in model.named_modules() if _is_norm(module)]
    tags = _tags(model, tagged)
    groups = defaultdict[tuple[frozenset[str], bool], list[nn.Parameter]](list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = "bias" not in name and name.rpartition(".")[0] not in norms
            groups[frozenset(tags[name]), decays].append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": weight_decay if decays else 0.0,
            **({"tags": set(own)} if own else {}),
        }
        for (own, decays), parameters in groups.items()
    ]


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
