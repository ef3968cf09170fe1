"""Rates between ranks, measured by all of them at once."""

from openwafer.training.collectives.group import Group
from openwafer.training.collectives.network_rates import NetworkRates, measure_network
from tests.training.collectives.ranks import on_ranks

SIZE = 3


def test_all_ranks_measure_the_same_rates() -> None:
    """Each kind of message has a group of its own; what is measured is a rate of this machine."""

    def run(weights: Group) -> Group:
        return weights

    groups = [on_ranks(SIZE, run) for _ in range(3)]

    def measure(group: Group) -> NetworkRates:
        passing = [one[group.rank] for one in groups]
        return measure_network(passing[0], passing[1], passing[2])

    found = on_ranks(SIZE, measure)
    assert found[0] == found[1] == found[2]
    assert 1e6 < found[0].gradients < 1e11
    assert 1e6 < found[0].weights < 1e11
