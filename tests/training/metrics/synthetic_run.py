"""A run folder as a streamed run on the disk tier would leave it, made up but self-consistent."""

import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path

from openwafer.trace import Trace
from openwafer.training.metrics import (
    METRICS_FORMAT,
    VALIDATION_FORMAT,
    StepMetrics,
    StepWriter,
    ValidationPoint,
)
from openwafer.training.metrics.run_record import ENVIRONMENT, GeneratedSample, describe_machine
from openwafer.training.metrics.run_record import SAMPLE as SAMPLE_FILE

MIB = 1 << 20
LAYER_PARAMETERS = 1_800_000
BUDGET_BYTES = 64 * MIB
LAYER_BYTES = 4 * LAYER_PARAMETERS
DISK_LIMIT = 530 * MIB


def layer_names(num_layers: int) -> list[str]:
    return ["embed_tokens", *(f"model.layers.{i}" for i in range(num_layers - 2)), "lm_head"]


def make_plan(num_layers: int) -> dict[str, object]:
    layers = [
        {
            "name": name,
            "parameters": LAYER_PARAMETERS,
            "weights_bytes": LAYER_BYTES,
            "states_bytes": 2 * LAYER_BYTES,
            "weights_tier": "dram" if index % 4 == 0 else "disk",
            "states_tier": "disk",
            "gradients_tier": "dram",
            "activations": "recompute" if index % 3 else "keep",
            "activation_bytes": 3 * MIB if index % 3 else 5 * MIB,
        }
        for index, name in enumerate(layer_names(num_layers))
    ]
    total = num_layers * LAYER_BYTES
    return {
        "format": "openwafer-plan",
        "version": 3,
        "mode": "streamed",
        "device": "cpu",
        "device_budget_bytes": BUDGET_BYTES,
        "predicted_peak_bytes": 61 * MIB,
        "predicted_host_bytes": 640 * MIB,
        "step_flops": 6 * 2048 * num_layers * LAYER_PARAMETERS,
        "predicted_step_seconds": 1.84,
        "step_limit": "disk",
        "parameters": num_layers * LAYER_PARAMETERS,
        "layers": layers,
        "step_bytes": {
            "fetch": 2 * total,
            "push": total,
            "disk_read": 3 * total,
            "disk_write": 3 * total,
        },
        "disk_limit_bytes_per_second": DISK_LIMIT,
    }


def make_metrics(step: int, num_layers: int) -> StepMetrics:
    chance = random.Random(step)
    total = num_layers * LAYER_BYTES
    seconds = 2.6 if step == 0 else 1.9 + 0.1 * chance.random()
    return StepMetrics(
        step=step,
        loss=2.2 + 6.8 * math.exp(-step / 40) + chance.gauss(0, 0.09),
        learning_rate=3e-4 * min(1.0, (step + 1) / 20),
        grad_norm=0.6 + chance.random(),
        tokens=2048,
        tokens_per_second=2048 / seconds,
        seconds=seconds,
        fetch_bytes=2 * total,
        push_bytes=total,
        disk_read_bytes=3 * total,
        disk_write_bytes=3 * total - (chance.randrange(LAYER_BYTES) if step else total // 2),
        device_bytes_peak=int((59.2 + 0.8 * chance.random()) * MIB),
        host_bytes=int((612 + min(step, 10) * 2 + chance.random()) * MIB),
    )


@dataclass
class _Clock:
    """When each of the run's engines is free again; one engine does one thing at a time."""

    trace: Trace
    free: dict[str, float] = field(default_factory=dict)
    held: list[tuple[float, int]] = field(default_factory=list)
    activations: dict[str, float] = field(default_factory=dict)

    def work(self, track: str, kind: str, layer: str, step: int, ready: float) -> float:
        """Run one piece as soon as engine and input are ready; return when it ends."""
        start = max(ready, self.free.get(track, 0.0))
        end = start + _SECONDS[kind] * random.Random(f"{kind}{layer}{step}").uniform(0.9, 1.15)
        self.free[track] = end
        self.trace.span(f"{kind} {layer}", track, start, end, layer=layer, kind=kind, step=step)
        return end

    def hold(self, start: float, end: float, num_bytes: int) -> None:
        self.held += [(start, num_bytes), (end, -num_bytes)]


_SECONDS = {
    "read": 0.012,
    "fetch": 0.009,
    "forward": 0.022,
    "recompute": 0.022,
    "backward": 0.044,
    "push": 0.008,
    "update": 0.018,
    "write": 0.012,
}


def make_trace(num_layers: int, steps: range) -> Trace:
    """Spans as a streamed run with a prefetch of two layers would record them."""
    trace = Trace()
    clock = _Clock(trace)
    for step in steps:
        _run_pass(clock, step, layer_names(num_layers), is_backward=False)
        _run_pass(clock, step, layer_names(num_layers)[::-1], is_backward=True)
    held = 9 * MIB
    for time, change in sorted(clock.held):
        held += change
        trace.counter("device memory", "memory", time, bytes=held)
    return trace


def _run_pass(clock: _Clock, step: int, layers: list[str], *, is_backward: bool) -> None:
    starts = [clock.free.get("compute", 0.0)] * 2
    for index, layer in enumerate(layers):
        read = clock.work("disk read", "read", layer, step, starts[-2])
        fetched = clock.work("fetch", "fetch", layer, step, read)
        if not is_backward:
            done = clock.work("compute", "forward", layer, step, fetched)
            clock.activations[layer] = done
        else:
            again = index % 3 and clock.work("compute", "recompute", layer, step, fetched)
            done = clock.work("compute", "backward", layer, step, max(fetched, again))
            pushed = clock.work("push", "push", layer, step, done)
            updated = clock.work("update", "update", layer, step, pushed)
            clock.work("disk write", "write", layer, step, updated)
            clock.hold(done - 0.03, pushed, LAYER_BYTES)
            clock.hold(clock.activations[layer], done, 5 * MIB // 4)
        clock.hold(fetched - 0.009, done, LAYER_BYTES)
        starts.append(done)


def write_run(folder: Path, *, num_layers: int = 24, num_steps: int = 200) -> Path:
    """Write every file of a run folder; the last two steps but one are traced."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(
        "model:\n  architecture: gpt\n  num_layers: 22\n  hidden_size: 256\n"
        "data:\n  path: corpus/*.py\nmemory:\n  device_budget: 64 MiB\n"
    )
    (folder / "plan.json").write_text(json.dumps(make_plan(num_layers)))
    with StepWriter(folder / "metrics.jsonl", METRICS_FORMAT) as metrics:
        for step in range(num_steps):
            metrics.append(make_metrics(step, num_layers))
    with StepWriter(folder / "validation.jsonl", VALIDATION_FORMAT) as validation:
        for step in range(24, num_steps, 25):
            validation.append(ValidationPoint(step, 2.35 + 6.6 * math.exp(-step / 40)))
    make_trace(num_layers, range(num_steps - 3, num_steps)).write(folder / "trace.json")
    SAMPLE_FILE.write(folder, SAMPLE)
    ENVIRONMENT.write(folder, describe_machine("CPU, metered arena"))
    return folder


def change_plan(folder: Path, **changes: object) -> None:
    path = folder / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


SAMPLE = GeneratedSample(
    200,
    "def read_lines(path):",
    '\n    """Return the <lines> & nothing else."""\n    with open(path) as file:\n'
    "        return file.readlines()\n\n\nclass Reader:\n    def __init__(self, source):\n"
    "        self.source = source\n",
)
