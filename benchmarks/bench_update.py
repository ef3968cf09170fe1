"""The optimizer pass against the memory: seconds of each rule beside plain streaming kernels.

AdamW in fp32 reads weight, gradient and two moments and writes all but the gradient: 28 bytes a
parameter. The limit is the fastest of some kernels that move the same arrays and compute next to
nothing, measured in the same rounds, in turn with the rules. Cases with other bytes a parameter
are held against the same bytes a second.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from openwafer.training.step import tensor_norms
from openwafer.training.store import ArraySpec, Part, RecordLayout, lay_out
from openwafer.training.store.update_rules import ParamUpdate, UpdateRule, update_parameter
from openwafer.training.store.update_rules.optimizers import build_optimizer
from openwafer.training.store.update_rules.translation import from_torch
from openwafer.training.store.update_rules.update_pass import Averaging, state_specs

LIMIT_BYTES = 28
SCALE = 0.75
# A layer of a small decoder: attention, feed-forward, biases and norms.
SHAPES = ((1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024), (4096,), (1024,), (1024,))


@dataclass
class Case:
    """A rule over some records, and what it has to move."""

    name: str
    bytes_per_parameter: int
    rule: UpdateRule
    scale: float = 1.0
    keeps_master: bool = False
    averaging: Averaging | None = None
    updates: list[ParamUpdate] = field(default_factory=list)

    def allocate(self, num_records: int) -> None:
        """Lay out records as the store does and fill them."""
        self.updates = [update for _ in range(num_records) for update in self._record()]

    def run(self) -> None:
        """One pass over all records."""
        for update in self.updates:
            update_parameter(self.rule, update, gradient_scale=self.scale, averaging=self.averaging)

    def _record(self) -> list[ParamUpdate]:
        dtype = torch.bfloat16 if self.keeps_master else torch.float32
        weights = [ArraySpec(f"p{i}", dtype, shape) for i, shape in enumerate(SHAPES)]
        gradients = [ArraySpec(spec.name, torch.float32, spec.shape) for spec in weights]
        states = {spec.name: self._states(spec) for spec in weights}
        every = [state for of_one in states.values() for state in of_one.values()]
        arrays = allocate(lay_out("layer", weights, every, gradients))
        return [
            ParamUpdate(
                arrays[Part.WEIGHTS, spec.name],
                arrays[Part.GRADIENTS, spec.name],
                {name: arrays[Part.STATES, s.name] for name, s in states[spec.name].items()},
                num_updates=5,
            )
            for spec in weights
        ]

    def _states(self, weight: ArraySpec) -> dict[str, ArraySpec]:
        specs = state_specs(
            self.rule,
            weight.shape,
            weight.dtype,
            keeps_master=self.keeps_master,
            keeps_average=self.averaging is not None,
        )
        return {s.name: ArraySpec(f"{s.name}/{weight.name}", s.dtype, s.shape) for s in specs}


def allocate(layout: RecordLayout) -> dict[tuple[Part, str], torch.Tensor]:
    """The arrays of a record in ordinary memory; real ones hold small positive numbers."""
    arrays = {}
    for part, places in layout.parts.items():
        memory = torch.zeros(layout.part_bytes(part), dtype=torch.uint8)
        for place in places:
            array = memory[place.offset_bytes : place.end_bytes].view(place.spec.dtype)
            if array.is_floating_point():
                array.uniform_(0.001, 0.002)
            arrays[part, place.spec.name] = array.view(place.spec.shape)
    return arrays


def streaming_kernels(num_parameters: int) -> dict[str, Callable[[], object]]:
    """Ways to read four arrays and write three."""
    weight, gradient, first, second = (torch.full((num_parameters,), 0.001) for _ in range(4))

    def add_and_scale() -> None:
        weight.add_(gradient, alpha=1e-9)
        first.mul_(0.999)
        second.mul_(0.999)

    def scale_and_sum() -> None:
        gradient.sum()
        for array in (weight, first, second):
            array.mul_(0.999)

    def add_round() -> None:
        weight.add_(gradient, alpha=1e-9)
        first.abs_()
        second.abs_()

    return {f.__name__: f for f in (add_and_scale, scale_and_sum, add_round)}


def rule_of(name: str, **options: object) -> UpdateRule:
    """The rule of an optimizer by name."""
    [rule] = from_torch(build_optimizer(name, [torch.empty(1, 1)], options))
    return rule


def cases() -> list[Case]:
    """What is measured."""
    return [
        Case("AdamW fused", 28, rule_of("adamw")),
        Case("AdamW fused, scaled", 28, rule_of("adamw"), SCALE),
        Case("AdamW fused, scaled, split master", 28, rule_of("adamw"), SCALE, True),
        Case("AdamW fused, scaled, average", 36, rule_of("adamw"), SCALE, False, Averaging(0.9, 1)),
        Case("AdamW single-tensor", 28, rule_of("adamw", fused=False)),
        Case("SGD momentum fused, scaled", 20, rule_of("sgd", momentum=0.9), SCALE),
        Case("Lion, scaled", 20, rule_of("lion"), SCALE),
    ]


def measure(runs: dict[str, Callable[[], object]], num_rounds: int) -> dict[str, list[float]]:
    """Seconds of every run, all of them in turn in each round, after one round of warming up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(num_rounds + 1):
        for name, run in runs.items():
            start_seconds = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start_seconds)
    return {name: values[1:] for name, values in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=3, help="layers of 12.6 M parameters")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    # Once a process has freed a large array, as any training step does, glibc keeps temporaries
    # instead of returning each to the system; rules that make some are five times faster then.
    torch.zeros(30 << 20, dtype=torch.uint8)
    measured = cases()
    for case in measured:
        case.allocate(options.records)
    num_parameters = sum(update.weight.numel() for update in measured[0].updates)
    kernels = streaming_kernels(num_parameters)
    gradients = [u.gradient for u in measured[0].updates if u.gradient is not None]
    runs: dict[str, Callable[[], object]] = {case.name: case.run for case in measured}
    runs["norm of order 2"] = lambda: tensor_norms(gradients)
    seconds = measure(kernels | runs, options.rounds)
    limit = min(statistics.median(seconds[name]) for name in kernels) / LIMIT_BYTES
    num_bytes = {case.name: case.bytes_per_parameter for case in measured}
    print(f"{num_parameters / 1e6:.1f} M parameters, {options.threads} threads, ", end="")
    print(f"{options.rounds} rounds; limit {num_parameters / limit / 1e9:.1f} GB/s")
    print(f"{'':36}{'B/param':>8}{'median ms':>11}{'least ms':>10}{'/ limit':>9}")
    for name, values in seconds.items():
        size = num_bytes.get(name, 4 if name.startswith("norm") else LIMIT_BYTES)
        median = statistics.median(values)
        line = f"{name:36}{size:8}{median * 1e3:11.2f}{min(values) * 1e3:10.2f}"
        print(f"{line}{median / (limit * size):9.2f}")


if __name__ == "__main__":
    main()
