"""The training of a run as plans for systems take it, counted in its model."""

from openwafer.planning.system_plan import TrainingTask
from openwafer.planning.throughput import ModelShape
from openwafer.training.session import RunConfig, count_step


def task_of(config: RunConfig) -> TrainingTask:
    """What a run trains, counted in its model."""
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
    )
