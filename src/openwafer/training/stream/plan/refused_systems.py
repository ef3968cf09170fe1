"""Plans of models that cannot train on several systems."""

from collections.abc import Sequence

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.stream.plan.search import StreamPlan


def shared_state(changed: Sequence[str], where: str) -> OpenwaferError:
    """The error of a model whose forwards change attributes of these names.

    Args:
        changed: with the path of their module in front.
        where: says what of that several systems would not see.
    """
    name = changed[0].replace("_buffers.", "")
    more = f" and {len(changed) - 1} more" * (len(changed) > 1)
    return error(
        "systems-share-state",
        f"the model's forward changes {name!r}{more}, which another forward may read, and on "
        f"several systems {where}",
        help="make it in the constructor, return it from forward, or let no code of the forward "
        "read it; for BatchNorm's statistics, take LayerNorm or GroupNorm; or train on one system",
    )


def refuse_systems(plan: StreamPlan) -> None:
    """Refuse a plan whose passes the systems of a run may not walk alike.

    Raises:
        OpenwaferError: ``systems-share-state``, ``systems-nested``.
    """
    if plan.changed:
        raise shared_state(plan.changed, "the next one may be elsewhere")
    modules = [
        name
        for name, layers in plan.split.inner.items()
        if any(layer.slice_of is None for layer in layers)
    ]
    if modules:
        inner = modules[0]
        raise error(
            "systems-nested",
            f"{inner!r} has layers inside, which every micro-batch may use or not, and all systems "
            "fetch the same layers",
            help=f"name it in streaming.layers as one layer: streaming.layers: [{inner}]",
        )
