"""``openwafer sparsify`` tells what it has pruned."""

import json
import shlex
from pathlib import Path

from openwafer.training.methods.sparsify import PrunedModel
from openwafer.training.metrics.units import format_count, format_duration, format_share
from openwafer.training.session import Calibration, Pruning, sparsify
from openwafer.training.sparsity.masks.structures import Blocks


def prune_model(
    checkpoint: Path, folder: Path, pruning: Pruning, texts: Calibration, *, trusts_code: bool
) -> None:
    """Prune a saved model, write it, and say how to go on."""
    pruned = sparsify(checkpoint, folder, pruning, texts, trusts_code=trusts_code)
    print(_summary(pruned))
    print(f"wrote {pruned.folder} in {format_duration(pruned.seconds)}")
    print(
        f"train on with: model: {{kind: checkpoint, path: {shlex.quote(str(pruned.folder))}}} and "
        f"sparsity: {_written(pruning)}"
    )


def _summary(pruned: PrunedModel) -> str:
    elements = sum(weight.num_elements for weight in pruned.weights)
    zeros = elements - sum(weight.num_kept for weight in pruned.weights)
    return (
        f"{len(pruned.weights)} weights of {format_count(elements)} elements: "
        f"{format_share(zeros / elements)} are zero, {format_share(zeros / pruned.num_parameters)} "
        "of the model"
    )


def _written(pruning: Pruning) -> str:
    """The key of a run's config that keeps the zeros where they are."""
    target = pruning.group.build(pruning.seed).target
    keys = {"sparsity": repr(target.sparsity_at(0)), "init_method": "topk"}
    # Zeros of n:m are found by their magnitude alone, whichever way the weight is stored.
    if isinstance(target.structure, Blocks):
        keys["structure"] = str(pruning.structure)
    if pruning.filters:
        keys["param_filter"] = json.dumps(pruning.filters)
    return f"{{{', '.join(f'{key}: {value}' for key, value in keys.items())}}}"
