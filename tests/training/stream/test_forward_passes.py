"""Forwards without gradients stream by a schedule of their own and have a resident model's bits."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers

from openwafer.training.models.key_values import forward_from, new_key_values
from openwafer.training.models.reference_gpt import ReferenceGpt
from openwafer.training.store.layout import Part
from openwafer.training.stream.assemble import assemble, plan_run
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.schedule import RecordBytes, Visit
from openwafer.training.stream.stream_options import PlanInput
from tests.training.stream.both_loops import STREAMED
from tests.training.stream.schedule_rules import check
from tests.training.stream.small_gpt import VOCABULARY, adamw, build_gpt, gpt_loss

TOKENS = torch.randint(0, VOCABULARY, (3, 16), generator=torch.Generator().manual_seed(4))


@contextmanager
def streamed(folder: Path) -> Iterator[tuple[ReferenceGpt, StreamedExecution]]:
    """A model in evaluation mode whose weights and optimizer states are on disk."""
    model = build_gpt().eval()
    options = replace(STREAMED, tier=StoreTier.DISK, min_layer_bytes=1)
    planned = plan_run(
        Workload(model, [TOKENS[:2]], partial(gpt_loss)),
        Updater(adamw(model), model),
        PlanInput(options, keeps_gradients=True),
        folder=folder,
    )
    execution = assemble(model, planned, folder=folder)
    assert isinstance(execution, StreamedExecution)
    with execution.store as store:
        store.commit(0, {})
        yield model, execution
        execution.close()


def logits(model: ReferenceGpt, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(tokens).logits
    return found


def written(model: ReferenceGpt, past: transformers.Cache, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of tokens that follow those of ``past``."""
    output = forward_from(model, tokens, past)
    found: torch.Tensor = output.logits  # type: ignore[attr-defined]
    return found


def weights_bytes(execution: StreamedExecution) -> int:
    return sum(layout.part_bytes(Part.WEIGHTS) for layout in execution.store.layouts.values())


def test_streamed_texts_that_keep_their_keys_have_the_bits_of_resident_ones(tmp_path: Path) -> None:
    plain = build_gpt().eval()
    pasts = [new_key_values(plain) for _ in TOKENS]
    with streamed(tmp_path) as (model, execution):
        kept = [new_key_values(model) for _ in TOKENS]
        for start, end in ((0, 9), (9, 10), (10, 11)):
            pieces = [row[None, start:end] for row in TOKENS]
            found = execution.evaluate(
                [
                    partial(written, model, past, piece)
                    for past, piece in zip(kept, pieces, strict=True)
                ]
            )
            with torch.no_grad():
                expected = [written(plain, past, p) for past, p in zip(pasts, pieces, strict=True)]
            assert all(map(torch.equal, found, expected))


def test_every_layer_of_a_forward_was_foreseen(tmp_path: Path) -> None:
    with streamed(tmp_path) as (model, execution):
        assert torch.equal(logits(model, TOKENS), logits(build_gpt().eval(), TOKENS))
        assert execution.executor.log.unplanned == []
        assert len(execution.executor.log.visits) == len(execution.executor.split.layers)


def test_the_schedule_of_a_forward_passes_the_check(tmp_path: Path) -> None:
    with streamed(tmp_path) as (_, execution):
        schedule = execution.executor.forward_schedule
        assert schedule is not None
        layouts = execution.store.layouts
        sizes = {n: RecordBytes(layouts[n].part_bytes(Part.WEIGHTS), 0) for n in layouts}
        layers = [layer for layer in execution.executor.split.layers if layer.parent is None]
        check(schedule, sizes, [Visit(x.name, x.records, has_backward=False) for x in layers])


@pytest.mark.parametrize("num_texts", [1, 3])
def test_weights_cross_the_link_once_for_all_texts_of_a_pass(
    tmp_path: Path, num_texts: int
) -> None:
    with streamed(tmp_path) as (model, execution):
        rows = [row[None] for row in TOKENS[:num_texts]]
        execution.evaluate([partial(logits, model, row) for row in rows])
        assert execution.traffic.fetch_bytes == weights_bytes(execution)


def test_passes_read_weights_and_no_states(tmp_path: Path) -> None:
    with streamed(tmp_path) as (model, execution):
        before = execution.store.traffic.read_bytes
        for _ in range(3):
            logits(model, TOKENS)
        execution.store.drain()
        read_bytes = execution.store.traffic.read_bytes - before
        # What is foreseen after the last pass counts as well.
        assert read_bytes <= 4 * weights_bytes(execution)


def test_a_part_that_is_called_by_itself_brings_its_own_weights(tmp_path: Path) -> None:
    with streamed(tmp_path) as (model, execution), torch.no_grad():
        found = model.head(torch.ones(1, model.config.hidden_size))
        assert torch.equal(found, build_gpt().head(torch.ones(1, model.config.hidden_size)))
        head_bytes = execution.store.layouts["head"].part_bytes(Part.WEIGHTS)
        assert execution.traffic.fetch_bytes < head_bytes + weights_bytes(execution) // 2
