"""Time of PEs, added up as it is read: by group, and by place on the fabric.

An account of all PEs of a wafer takes more memory than there is for it, so it is read a stretch of
PEs at a time, and nothing of a single PE stays but a number for each kind of the map.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.fabric import Account, Simulator
from openwafer.sdk.fabric.account import KINDS, PES_AT_A_TIME
from openwafer.sdk.fabric.words import NUM_STATES, QUEUES, SLOTS


@dataclass(frozen=True)
class GroupTimes:
    """Where the cycles of PEs went.

    Attributes:
        cycles: of groups, shape (groups, slots, states), as an account has those of PEs.
        colors: of their input queues, shape (groups, queues), a bit each.
        kinds: of all PEs, whether they are in a group or not: shape (kinds, PEs).
    """

    cycles: NDArray[np.int64]
    colors: NDArray[np.uint32]
    kinds: NDArray[np.int64]


def group_times(simulator: Simulator, group_of: NDArray[np.int64], num_groups: int) -> GroupTimes:
    """The times of groups up to now.

    Args:
        simulator: its time is booked.
        group_of: shape (PEs,), the group of each PE by number; -1 for none.
        num_groups: groups are 0 to the one before.
    """
    found = GroupTimes(
        np.zeros((num_groups, SLOTS, NUM_STATES), np.int64),
        np.zeros((num_groups, QUEUES), np.uint32),
        np.zeros((len(KINDS), group_of.size), np.int64),
    )
    for first in range(0, group_of.size, PES_AT_A_TIME):
        end = min(first + PES_AT_A_TIME, group_of.size)
        account = simulator.account(first, end)
        found.kinds[:, first:end] = account.main.kinds
        for group, cycles, colors in _by_group(account, group_of[first:end]):
            found.cycles[group] += cycles
            found.colors[group] |= colors
    return found


def _by_group(
    account: Account, group_of: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]]:
    """Groups that some PEs are of, the sums of their cycles, and their colors."""
    order = np.argsort(group_of, kind="stable")
    order = order[group_of[order] >= 0]
    groups, begins = np.unique(group_of[order], return_index=True)
    if groups.size:
        cycles = np.add.reduceat(account.cycles[order], begins)
        yield groups, cycles, np.bitwise_or.reduceat(account.colors[order], begins)
