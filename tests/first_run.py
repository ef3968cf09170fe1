"""Plans that a server of forks makes when it starts, so that its forks need not measure anew.

What a machine takes for the operators of a step, and beside them for a layer by its policy and the
number of micro-batches, is measured once a process, and inherited.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from openwafer.training.plan_record import Activations
from openwafer.training.session import Session
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import make_tiny_data, quiet, tiny_config

MOST_MICRO_BATCHES = 3


def plan(*ways: tuple[Activations, int]) -> None:
    """Plan a run for each policy and number of micro-batches."""
    with TemporaryDirectory() as folder:
        data = make_tiny_data(Path(folder))
        config = tiny_config(data, Path(folder, "runs"), StoreTier.DISK)
        for policy, number in ways:
            streaming = replace(config.streaming, activations=policy)
            batch = replace(config.batch, micro_batches=number)
            Session(replace(config, streaming=streaming, batch=batch), console=quiet()).plan()


def plan_all() -> None:
    """In all ways of which most processes meet some."""
    plan(*product(Activations, range(1, MOST_MICRO_BATCHES + 1)))


torch.set_num_threads(1)  # a fork has one thread, and would wait for the others
plan((Activations.KEEP, 1))
