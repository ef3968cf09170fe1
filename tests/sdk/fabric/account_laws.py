"""What holds of every account of time."""

import numpy as np

from openwafer.sdk.fabric import Account


def check_laws(account: Account) -> None:
    """Each slot's states are a partition of the run's cycles, and so are the datapath's beats."""
    assert (account.cycles >= 0).all()
    assert np.unique(account.cycles.sum(axis=2)).tolist() == [account.num_cycles]
    assert (account.datapath >= 0).all()
    assert np.unique(account.datapath.sum(axis=1)).tolist() == [account.num_cycles]
