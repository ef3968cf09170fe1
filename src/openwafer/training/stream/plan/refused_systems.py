"""Plans of models that cannot train on several systems."""

from openwafer.diagnostics import error
from openwafer.training.stream.plan.search import StreamPlan


def refuse_systems(plan: StreamPlan) -> None:
    """Refuse a plan whose passes the systems of a run may not walk alike.

    Raises:
        OpenwaferError: ``systems-share-state``, ``systems-nested``.
    """
    if plan.is_changed:
        raise error(
            "systems-share-state",
            "the model's forward changes what the next forward sees, such as running statistics, "
            "and on several systems the next one may be elsewhere",
            help="train on one system, or replace such layers: LayerNorm and GroupNorm for "
            "BatchNorm",
        )
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
