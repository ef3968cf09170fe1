"""What a rank tells the owners of the experts that it has computed with."""

from contextlib import closing, nullcontext
from pathlib import Path

import torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from openwafer.training.collectives.exchange import HEADERS, NUM_FIELDS, Asked, RowCall
from openwafer.training.collectives.group import Group
from openwafer.training.store.layout import slice_name
from openwafer.training.stream.forms.expert_modules import DOWN, UP, expert_modules
from openwafer.training.stream.link.store_link import StoreLink
from openwafer.training.stream.replicas.expert_link import ExpertLink
from openwafer.training.stream.replicas.ownership import fetched_but_experts
from tests.training.collectives.ranks import on_ranks
from tests.training.stream.small_link import SmallLink

WIDTH = 16
SIZES = {"hidden_size": WIDTH, "intermediate_size": 24, "num_local_experts": 2}
NO_ROWS = RowCall(Asked.FORWARD, sizes=(0, 0))


def link_of(group: Group, own: StoreLink) -> ExpertLink:
    """Of a module with an expert on each of two ranks; no pass takes records of the store."""
    config = MixtralConfig(**SIZES, experts_implementation="grouped_mm")
    modules = expert_modules(MixtralExperts(config), [UP, DOWN])
    owners = {slice_name(name, rank): rank for name in (UP, DOWN) for rank in range(2)}
    return ExpertLink(group, modules, fetched_but_experts(owners, 2), own, nullcontext)


def headers_taken(group: Group, number: int) -> list[int]:
    """What the first rank asks of the second one, or tells it."""
    found = []
    for _ in range(number):
        header = torch.zeros(NUM_FIELDS + 1, dtype=torch.int64)
        group.receive(header, 0, HEADERS, "a call").wait()
        found.append(int(header[0]))
    return found


def test_a_rank_says_once_that_its_backward_has_left_a_module(tmp_path: Path) -> None:
    def run(group: Group) -> list[int]:
        if group.rank == 1:
            return headers_taken(group, 4)
        with closing(SmallLink(tmp_path)) as own, closing(link_of(group, own.link)) as link:
            for _ in range(2):
                link.backward(NO_ROWS, torch.empty(0, WIDTH))
                link.leave(lambda path: True)
                link.leave(lambda path: True)
        return []

    assert on_ranks(2, run)[1] == [Asked.BACKWARD, Asked.LEAVE] * 2
