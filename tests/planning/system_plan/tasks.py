"""Trainings to plan for, as transformers whose activations are reckoned by hand."""

from dataclasses import replace

from openwafer.planning.placement import LayerLoad
from openwafer.planning.system_plan import TrainingTask
from openwafer.planning.throughput import transformer


def task(
    parameters: float = 175e9,
    layers: int = 96,
    width: int = 12_288,
    *,
    batch_size: int = 1536,
    vectors: int = 17,
    sparsity: float = 0.0,
) -> TrainingTask:
    """Sequences of 2048 tokens; a layer leaves `vectors` vectors of its width for each of them."""
    shape = transformer(parameters, layers, width, 2048)
    load = LayerLoad(
        "layer",
        shape.forward_flops / layers,
        shape.backward_flops / layers,
        width,
        16 * parameters / layers,
        vectors * width * 2,
        width * 2,
    )
    return TrainingTask(
        model=shape,
        batch_size=batch_size,
        sequence_length=2048,
        steps=100,
        sparsity=sparsity,
        layer_activation_bytes=vectors * width * 2,
        other_activation_bytes=0,
        loads=(load,) * layers,
    )


GPT_3 = task()
SMALL = task(1e8, 12, 768, batch_size=64)


def with_batch(made: TrainingTask, batch_size: int) -> TrainingTask:
    """The same with another batch."""
    return replace(made, batch_size=batch_size)
