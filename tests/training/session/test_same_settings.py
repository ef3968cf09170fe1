"""Systems of a launcher that were started with other settings are told so, on all of them."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from torch._C._distributed_c10d import HashStore

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.joining import Meeting
from openwafer.training.session.systems import Systems, require_same_settings


def told_to(store: HashStore, rank: int, settings: Mapping[str, str]) -> str:
    try:
        require_same_settings(Systems(Meeting(store, rank, 2, 20.0)), settings)
    except OpenwaferError as told:
        return str(told)
    return ""


def told_to_both(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    store = HashStore()
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(told_to, [store] * 2, range(2), (first, second)))


def test_other_settings_of_one_system_are_named_on_both() -> None:
    told = told_to_both({"seed": "1", "steps": "9"}, {"seed": "1", "steps": "8", "name": "run"})
    for text in told:
        assert "[systems-config]: rank 1 on host" in text
        assert "note: name is not set on rank 0, and run on rank 1\n" in text
        assert "note: steps is 9 on rank 0, and 8 on rank 1\n" in text
        assert "seed" not in text


def test_the_number_of_systems_may_be_told_to_one_alone() -> None:
    assert told_to_both({"systems": "1"}, {}) == ["", ""]
