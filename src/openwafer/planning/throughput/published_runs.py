"""Trainings whose speed others measured and published, and the utilisation that follows."""

from dataclasses import dataclass
from typing import Final

from openwafer.figures import Figure, Origin
from openwafer.planning.systems import CS2, CS3, System
from openwafer.planning.systems.published import ALCF
from openwafer.planning.throughput.passes import ModelShape, transformer
from openwafer.planning.throughput.training import reached_utilisation

MODEL_ZOO: Final = "logs of the Cerebras Model Zoo"


@dataclass(frozen=True)
class PublishedRun:
    """A training: what ran, where, and the sequences that it did in a second."""

    name: str
    system: System
    num_systems: int
    model: ModelShape
    sequence_length: int
    rate: Figure

    @property
    def utilisation(self) -> Figure:
        """The share of the peak of its systems."""
        flops = self.model.flops_per_token * self.sequence_length * self.rate.value
        share = reached_utilisation(flops, 1.0, self.system, self.num_systems)
        source = "6 N + 12 L d s FLOPs a token, over the peak"
        return Figure("utilisation", share, "", Origin.INFERRED, source)


def _run(
    name: str,
    system: System,
    num_systems: int,
    shape: tuple[float, int, int, int],
    rate: float,
    source: str,
) -> PublishedRun:
    parameters, layers, width, length = shape
    return PublishedRun(
        name,
        system,
        num_systems,
        transformer(parameters, layers, width, length),
        length,
        Figure("rate", rate, "sequences/s", Origin.PUBLISHED, source),
    )


GPT_J = (6.053e9, 28, 4096, 2048)
PUBLISHED_RUNS: Final = (
    _run("GPT-J 6B, 2 CS-2", CS2, 2, GPT_J, 43.7, ALCF),
    _run("GPT-J 6B, 1 CS-3", CS3, 1, GPT_J, 44.75, ALCF),
    _run("Llama3-8B, 1 CS-3", CS3, 1, (8.03e9, 32, 4096, 2048), 19.4, MODEL_ZOO),
    _run("Llama2-7B, 1 CS-3, if of 2048 tokens", CS3, 1, (6.74e9, 32, 4096, 2048), 31.98, ALCF),
    _run("Llama2-7B, 1 CS-3, if of 4096 tokens", CS3, 1, (6.74e9, 32, 4096, 4096), 31.98, ALCF),
    _run("BERT-large, 1 CS-2", CS2, 1, (3.35e8, 24, 1024, 128), 4040, MODEL_ZOO),
)
