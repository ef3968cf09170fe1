"""A model trains sparse in memory that its dense weights and states do not fit."""

from pathlib import Path

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session import Session
from openwafer.training.sparsity.masks.one_shot import InitMethod
from tests.own_process import integers_of
from tests.training.session.limited_memory_run import LIMIT_BYTES, STORE_BYTES, config_of
from tests.training.session.tiny_runs import quiet

DENSE_WEIGHTS_BYTES = 4 * 12 * 12 * 1024**2


def test_a_run_that_does_not_fit_is_refused_before_weights_are_drawn(tmp_path: Path) -> None:
    config = config_of(tmp_path, None, InitMethod.RANDOM)
    with pytest.raises(OpenwaferError, match=f"may use {STORE_BYTES:,} bytes of host memory"):
        Session(config, console=quiet()).train()
    drawn_from = torch.get_rng_state()
    torch.manual_seed(config.seed)
    assert torch.equal(torch.get_rng_state(), drawn_from)
    assert not config.path.exists()


@pytest.mark.slow
@pytest.mark.parametrize("method", [InitMethod.RANDOM, InitMethod.TOPK])
def test_a_run_begins_trains_and_is_saved_without_a_dense_copy(
    method: InitMethod, tmp_path: Path
) -> None:
    module = "tests.training.session.limited_memory_run"
    [raised] = integers_of(module, tmp_path, 0.9, method)
    assert LIMIT_BYTES < DENSE_WEIGHTS_BYTES
    assert raised < DENSE_WEIGHTS_BYTES
