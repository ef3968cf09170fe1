"""On the disk tier, a deeper model takes no more host memory but for its activations."""

from pathlib import Path

import pytest

from tests.own_process import integers_of


def train(
    folder: Path, num_layers: int, *, batch_size: int, micro_batches: int = 1
) -> tuple[int, ...]:
    """See :func:`tests.training.session.deep_run.main`."""
    folder.mkdir()
    sizes = num_layers, batch_size, micro_batches
    return integers_of("tests.training.session.deep_run", folder, *sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "micro_batches"), [(6, 1), (4, 4)])
def test_four_times_the_depth_adds_5_percent_of_host_memory_at_most(
    batch_size: int, micro_batches: int, tmp_path: Path
) -> None:
    (shallow, _, trained, _), (deep, _, trained_deep, _) = (
        train(tmp_path / str(depth), depth, batch_size=batch_size, micro_batches=micro_batches)
        for depth in (8, 32)
    )
    allowed = shallow * 5 // 100
    assert trained_deep - trained > 10 * allowed
    assert deep - shallow <= allowed


@pytest.mark.slow
def test_the_heap_of_many_layers_is_no_multiple_of_their_activations(tmp_path: Path) -> None:
    _, raised_bytes, _, device_bytes = train(tmp_path / "run", 32, batch_size=340)
    assert raised_bytes < 2.25 * device_bytes
