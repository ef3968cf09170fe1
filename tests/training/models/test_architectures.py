"""Every row of the table of architectures can be trained and says the truth about itself."""

from fnmatch import fnmatchcase

import torch
from torch import nn

from tests.training.architectures import ARCHITECTURES, Architecture, family_rows

MAX_PARAMETERS = 200_000


@family_rows
def test_the_loss_reaches_every_trainable_parameter_but_those_the_row_names(
    row: Architecture,
) -> None:
    model = row.build()
    loss = model(**row.batch()).loss
    loss.backward()
    missed = {n for n, p in model.named_parameters() if p.requires_grad and p.grad is None}
    named = {n for n in missed if any(fnmatchcase(n, glob) for glob in row.without_gradient)}
    assert torch.isfinite(loss)
    assert loss.ndim == 0
    assert missed == named


@family_rows
def test_a_model_is_tiny_and_the_same_for_the_same_seed(row: Architecture) -> None:
    first, again = (row.build(seed=3).state_dict() for _ in range(2))
    assert sum(tensor.numel() for tensor in first.values()) <= MAX_PARAMETERS
    assert all(torch.equal(first[name], again[name]) for name in first)


@family_rows
def test_batches_differ_by_seed_and_have_the_size_asked_for(row: Architecture) -> None:
    first, again, other = (row.batch(seed, size=3) for seed in (1, 1, 2))
    tensors = [name for name, tensor in first.items() if tensor.ndim]
    assert all(len(first[name]) == 3 for name in tensors)
    assert all(torch.equal(first[name], again[name]) for name in tensors)
    assert any(not torch.equal(first[name], other[name]) for name in tensors)


@family_rows
def test_the_flags_are_what_forward_does(row: Architecture) -> None:
    model = row.build()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    random_state = torch.get_rng_state()
    model(**row.batch())
    changed = {n for n, b in model.named_buffers() if not torch.equal(b, buffers[n])}
    assert row.has_stateful_buffers == bool(changed)
    assert row.draws_random_numbers == (not torch.equal(random_state, torch.get_rng_state()))
    assert row.is_tied == _has_tied_parameters(model)


def _has_tied_parameters(model: nn.Module) -> bool:
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    return len(names) > len(list(model.parameters()))


def test_names_are_unique_and_there_are_enough_rows() -> None:
    names = [row.name for row in ARCHITECTURES]
    assert len(set(names)) == len(names)
    assert len({row.model_class for row in ARCHITECTURES}) >= 36
