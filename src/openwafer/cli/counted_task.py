"""The training of a run as plans for systems and wafers take it, counted in its model."""

from dataclasses import replace

from openwafer.diagnostics import OpenwaferError, Severity, tell
from openwafer.planning.memory import RESIDENT_BYTES_PER_WEIGHT
from openwafer.planning.placement import LayerLoad
from openwafer.planning.system_plan import TrainingTask
from openwafer.planning.systems import System
from openwafer.planning.throughput import ModelShape
from openwafer.training.methods.step_count import count_layers, count_step
from openwafer.training.session import RunConfig


def task_of(config: RunConfig, system: System | None = None) -> TrainingTask:
    """What a run trains, counted in its model; for a wafer layer by layer, too."""
    count, sizes = count_step(config), config.batch.sizes
    return TrainingTask(
        model=ModelShape(
            parameters=count.parameters,
            layers=count.layers,
            width=count.width,
            forward_flops=count.forward_flops,
            backward_flops=count.backward_flops,
            sparse_parameters=count.sparse_parameters,
        ),
        batch_size=max(sizes.all),
        sequence_length=config.batch.sequence_length,
        steps=config.steps,
        sparsity=count.sparsity,
        layer_activation_bytes=count.layer_activation_bytes,
        other_activation_bytes=count.other_activation_bytes,
        fused_attentions=count.fused_attentions,
        changing=tuple(sizes.spans(config.steps)) if sizes.changes else (),
        loads=() if system is None or system.fabric is None else _loads_if_chained(config),
    )


def _loads_if_chained(config: RunConfig) -> tuple[LayerLoad, ...]:
    """None, and a warning, for a model that does not call its layers behind each other."""
    try:
        return loads_of(config)
    except OpenwaferError as refusal:
        if {each.code for each in refusal.diagnostics} != {"layer-order"}:
            raise
        tell([replace(each, severity=Severity.WARNING) for each in refusal.diagnostics])
        return ()


def loads_of(config: RunConfig) -> tuple[LayerLoad, ...]:
    """What a run's layers ask of a wafer, as if dense.

    Raises:
        OpenwaferError: ``layer-order`` for a model that is no pipeline, see `count_layers`.
    """
    return tuple(
        LayerLoad(
            layer.name,
            layer.forward_flops,
            layer.backward_flops,
            layer.features,
            RESIDENT_BYTES_PER_WEIGHT * layer.parameters,
            layer.activation_bytes,
            layer.output_bytes,
        )
        for layer in count_layers(config)
    )
