"""What holds for every test: nothing reaches the network, runs repeat, cores are shared fairly."""

import os

from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # one core for each process of a parallel run

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
