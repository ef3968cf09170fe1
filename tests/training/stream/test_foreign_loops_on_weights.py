"""What loops do to weights that are away: the bits of the plain loop, in DRAM and on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tests.training.stream.foreign_loops import Lines, Loop, are_equal, outcome, some_in_a_row


def reads_statistics(loop: Loop) -> Any:
    return [(p.norm(), p.mean(), p.abs().max(), p.std()) for p in loop.parameters]


def reads_data(loop: Loop) -> Any:
    return [(p.data.sum(), p.detach()[0].clone(), p.data.t().clone()) for p in loop.parameters]


def reads_histograms(loop: Loop) -> Any:
    return [np.histogram(p.detach().cpu().numpy(), bins=5)[0] for p in loop.parameters]


def reads_between_forward_and_backward(loop: Loop) -> Any:
    loss = loop.loss(3)
    norms = [p.norm() for p in loop.parameters]
    loss.backward()
    loop.step()
    return norms


def reads_geometry(loop: Loop) -> Any:
    return [(p.stride(), p.is_contiguous(), p.storage_offset(), p.size()) for p in loop.parameters]


def reads_vectors(loop: Loop) -> Any:
    return parameters_to_vector(loop.parameters).detach().clone()


def reads_the_dtype(loop: Loop) -> Any:
    # A string is no tensor: its length is.
    return [len(p.type()) for p in loop.parameters]


def reads_without_inference(loop: Loop) -> Any:
    with torch.inference_mode():
        return [float(p.square().sum()) for p in loop.parameters]


def penalises(loop: Loop) -> None:
    for step in range(3):
        loss = loop.loss(step)
        (loss + 1e-2 * sum(p.pow(2).sum() for p in loop.parameters)).backward()
        loop.step()


def penalises_norms_before_the_forward(loop: Loop) -> None:
    penalty = torch.stack([p.norm() for p in loop.parameters]).sum()
    (loop.loss(1) + penalty).backward()
    loop.step()


def penalises_a_difference(loop: Loop) -> None:
    anchors = [p.detach().clone() for p in loop.parameters]
    loop.train(1)
    terms = [(p - anchor).abs().sum() for p, anchor in zip(loop.parameters, anchors, strict=True)]
    (loop.loss(1) + 0.1 * torch.stack(terms).sum()).backward()
    loop.step()


def penalises_products(loop: Loop) -> None:
    weights = [p for p in loop.parameters if p.dim() == 2]
    gram = sum((w @ w.t() - torch.eye(len(w))).pow(2).sum() for w in weights)
    (loop.loss(1) + 1e-3 * gram).backward()
    loop.step()


def writes_data(loop: Loop) -> None:
    for p in loop.parameters:
        p.data.mul_(0.5)
        p.data[0] = 0.25


def writes_under_no_grad(loop: Loop) -> None:
    with torch.no_grad():
        for p in loop.parameters:
            p.clamp_(-0.1, 0.1).add_(1e-3)
            p.view(-1)[:2] = 0.5
            p.mul_(0.9)


def replaces_data(loop: Loop) -> None:
    for p in loop.parameters:
        p.data = torch.full_like(p, 0.125)


def initialises(loop: Loop) -> None:
    torch.manual_seed(7)
    for p in loop.parameters:
        nn.init.normal_(p, std=0.02)


def copies_between_parameters(loop: Loop) -> None:
    with torch.no_grad():
        loop.parameters[3].copy_(loop.parameters[7])
        loop.parameters[7].data.copy_(torch.zeros(1))


def writes_vectors(loop: Loop) -> Any:
    vector = parameters_to_vector(loop.parameters).detach() * 0.5
    vector_to_parameters(vector, loop.parameters)
    loop.train(1)
    return vector


def swaps_averages(loop: Loop) -> Any:
    """The usual way to evaluate a moving average, which keeps `p.data` without a copy."""
    shadow = {p: p.data.clone() for p in loop.parameters}
    loop.train(2)
    for p, average in shadow.items():
        average.mul_(0.9).add_(p.data, alpha=0.1)
    backup = {p: p.data for p in loop.parameters}
    for p, average in shadow.items():
        p.data = average
    with torch.no_grad():
        loss = loop.loss(9)
    for p, weights in backup.items():
        p.data = weights
    return loss, list(shadow.values())


def swaps_parts_of_a_vector(loop: Loop) -> Any:
    """Averages, in the place of weights that lie in one vector behind each other."""
    return writes_vectors(loop), swaps_averages(loop)


def goes_back_to_the_best(loop: Loop) -> Any:
    """What was given for `p.data` is trained on, as it is the parameter's memory from then on."""
    best = [p.data.clone() for p in loop.parameters]
    loop.train(1)
    for p, weights in zip(loop.parameters, best, strict=True):
        p.data = weights
    loop.train(1)
    best[0].mul_(0.5)
    loop.train(1)
    return best


def holds_a_view(loop: Loop) -> Any:
    row = loop.parameters[1].data[0]
    loop.train(1)
    row.add_(1.0)
    return row.clone()


def perturbs(loop: Loop) -> None:
    """Sharpness-aware minimisation."""
    for step in range(2):
        loop.backward(step)
        norm = torch.stack([p.grad.norm() for p in loop.parameters if p.grad is not None]).norm()
        before = {p: p.data.clone() for p in loop.parameters}
        with torch.no_grad():
            for p in loop.parameters:
                assert p.grad is not None
                p.add_(p.grad * (0.05 / (norm + 1e-12)))
        loop.optimizer.zero_grad()
        loop.backward(step)
        for p, weights in before.items():
            p.data = weights
        loop.step()


def moves_nowhere(loop: Loop) -> None:
    loop.model.to("cpu").cpu().float().to(torch.float32).to(torch.device("cpu"))
    loop.backward(5)
    loop.model.cpu()
    loop.step()


def is_a_lightning_fit(loop: Loop) -> Any:
    """What Lightning 2 calls around and in a fit, on one process without a plugin."""
    for state in loop.optimizer.state.values():
        for key, value in state.items():
            if key != "step":
                state[key] = value.to("cpu")
    losses: list[Tensor] = []

    def closure() -> float:
        loss = loop.loss(len(losses))
        loop.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1, norm_type=2.0)
        losses.append(loss.detach())
        return loss.item()

    for _ in range(3):
        loop.optimizer.step(closure=closure)
        loop.model.train()
    for p, state in loop.optimizer.state.items():
        loop.optimizer.state[p] = {key: value.to("cpu") for key, value in state.items()}
    loop.model.cpu()
    loop.optimizer.zero_grad()
    return losses


def differentiates_by_parameters(loop: Loop) -> Any:
    return torch.autograd.grad(loop.loss(2), loop.parameters)


def applies_gradients_by_hand(loop: Loop) -> None:
    for step in range(2):
        gradients = torch.autograd.grad(loop.loss(step), loop.parameters)
        with torch.no_grad():
            for p, gradient in zip(loop.parameters, gradients, strict=True):
                p.sub_(gradient, alpha=0.1)


def freezes_for_a_while(loop: Loop) -> None:
    inlet = loop.model.get_submodule("inlet")
    inlet.requires_grad_(False)
    loop.train(1)
    inlet.requires_grad_(True)
    loop.train(1)


def fails_in_the_forward(loop: Loop) -> Any:
    def fail(*_: object) -> None:
        raise ValueError("batch")

    handle = loop.model.get_submodule("layers.1").register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="batch"):
        loop.loss(1)
    handle.remove()
    return [p.norm() for p in loop.parameters]


LINES: list[Lines] = [
    *(reads_statistics, reads_data, reads_histograms, reads_between_forward_and_backward),
    *(reads_geometry, reads_vectors, reads_the_dtype, reads_without_inference),
    *(penalises, penalises_norms_before_the_forward, penalises_a_difference, penalises_products),
    *(writes_data, writes_under_no_grad, replaces_data, initialises, copies_between_parameters),
    *(writes_vectors, swaps_averages, swaps_parts_of_a_vector, goes_back_to_the_best),
    *(
        holds_a_view,
        perturbs,
        moves_nowhere,
        is_a_lightning_fit,
        differentiates_by_parameters,
        applies_gradients_by_hand,
    ),
    *(freezes_for_a_while, fails_in_the_forward),
]


@pytest.mark.parametrize(("lines", "is_on_disk"), some_in_a_row(LINES))
def test_a_loop_sees_and_leaves_what_it_does_plainly(
    lines: Lines, is_on_disk: bool, tmp_path: Path
) -> None:
    found = outcome(lines, folder=tmp_path / "store" if is_on_disk else None)
    assert are_equal(found, outcome(lines, streams=False))
