"""Plans of runs whose systems have met, on hosts and a network that are made up."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from openwafer.training.collectives.network_rates import NetworkRates
from openwafer.training.session import RunConfig
from openwafer.training.session.building import ToPlan, build_hollow_model, make_optimizers
from openwafer.training.session.config_sections import BatchConfig, StreamingConfig
from openwafer.training.session.pipelined.plan import plan_systems
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.systems import MeasuredSystems
from openwafer.training.store import StoreOptions
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.replicas.ownership import HostMemory
from tests.training.session.tiny_runs import GPT, TinyData, tiny_config

VOCAB_SIZE = 280
# Of a network on which all that counts is what passes.
SLOW = NetworkRates(weights=1e3, gradients=1e3)
SMALL = BatchConfig(size=4, sequence_length=12, micro_batches=4)


def open_config(data: TinyData, folder: Path, batch: BatchConfig, systems: int = 2) -> RunConfig:
    """A run that leaves to the plan how its systems share the work."""
    config = replace(tiny_config(data, folder), model=GPT, batch=batch, systems=systems)
    return replace(config, streaming=StreamingConfig(device="cpu"))


def apart(*free_bytes: int) -> list[HostMemory]:
    """Hosts of one system each."""
    return [HostMemory(f"host-{n}", num_bytes) for n, num_bytes in enumerate(free_bytes)]


def planned(config: RunConfig, hosts: Sequence[HostMemory] | None = None) -> Planned:
    """The plan of systems that have met on a slow network, each on a host of its own by default."""
    model = build_hollow_model(config, VOCAB_SIZE, config.folder)
    hosts = apart(*[1 << 30] * config.systems) if hosts is None else hosts
    parts = ToPlan(
        model,
        make_optimizers(model, config, VOCAB_SIZE),
        VOCAB_SIZE,
        StoreOptions(),
        config.folder / "store",
        measured=MeasuredSystems(SLOW, tuple(hosts)),
    )
    return plan_systems(parts, config, RunFolder(config.path))
