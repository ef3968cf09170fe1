"""A plan that the server of forks makes when it starts, so that its forks need not measure anew.

What a machine takes for the operators of a step is measured once a process, and inherited.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from openwafer.training.session import Session
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import make_tiny_data, quiet, tiny_config

torch.set_num_threads(1)  # a fork has one thread, and would wait for the others
with TemporaryDirectory() as folder:
    data = make_tiny_data(Path(folder))
    Session(tiny_config(data, Path(folder, "runs"), StoreTier.DISK), console=quiet()).plan()
