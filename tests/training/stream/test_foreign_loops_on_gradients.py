"""What loops do to gradients and optimizer states that are away: the bits of the plain loop."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

from tests.training.stream.foreign_loops import Lines, Loop, are_equal, outcome, some_in_a_row


def gradients_of(loop: Loop) -> list[Tensor]:
    return [p.grad for p in loop.parameters if p.grad is not None]


def clips_by_norm(loop: Loop) -> Any:
    norms = []
    for step in range(3):
        loop.backward(step)
        norms.append(clip_grad_norm_(loop.model.parameters(), 0.01))
        loop.step()
    return norms


def clips_not_at_all(loop: Loop) -> Any:
    loop.backward()
    norm = clip_grad_norm_(loop.parameters, 1e3)
    loop.step()
    return norm


def clips_by_infinity(loop: Loop) -> Any:
    loop.backward()
    norm = clip_grad_norm_(loop.parameters, 1e-3, norm_type=float("inf"))
    loop.step()
    return norm


def clips_each_layer(loop: Loop) -> Any:
    loop.backward()
    norms = [clip_grad_norm_(child.parameters(), 0.01) for child in loop.model.children()]
    loop.step()
    return norms


def clips_twice(loop: Loop) -> Any:
    loop.backward()
    norms = [clip_grad_norm_(loop.parameters, limit) for limit in (0.1, 0.01)]
    loop.step()
    return norms, get_total_norm([])


def clips_between_backwards(loop: Loop) -> None:
    loop.backward(0)
    clip_grad_norm_(loop.parameters, 0.01)
    loop.backward(1)
    loop.step()


def clips_by_value(loop: Loop) -> None:
    loop.backward()
    clip_grad_value_(loop.parameters, 1e-3)
    loop.step()


def clips_by_hand(loop: Loop) -> None:
    loop.backward()
    total = sum(gradient.pow(2).sum() for gradient in gradients_of(loop)) ** 0.5
    for gradient in gradients_of(loop):
        gradient.data.mul_(0.01 / (total + 1e-6))
        gradient.data.clamp_(-1e-3, 1e-3)
    loop.step()


def clips_by_lists(loop: Loop) -> Any:
    loop.backward()
    gradients = gradients_of(loop)
    norms = torch._foreach_norm(gradients)  # noqa: SLF001 - as torch clips on a GPU
    torch._foreach_mul_(gradients, 0.5)
    torch._foreach_div_(gradients, [norm + 1.0 for norm in norms])
    loop.step()
    return norms


def reads_norms(loop: Loop) -> Any:
    loop.backward()
    before = [gradient.norm() for gradient in gradients_of(loop)]
    total = get_total_norm(gradients_of(loop))
    loop.optimizer.step()
    after = [gradient.norm() for gradient in gradients_of(loop)]
    loop.optimizer.zero_grad()
    return before, total, after, len(gradients_of(loop))


def reads_clipped(loop: Loop) -> Any:
    loop.backward()
    clip_grad_norm_(loop.parameters, 0.01)
    seen = [gradient.clone() for gradient in gradients_of(loop)]
    loop.step()
    return seen


def adds_noise(loop: Loop) -> None:
    loop.backward()
    torch.manual_seed(3)
    for p in loop.parameters:
        assert p.grad is not None
        p.grad += 1e-3 * torch.randn_like(p.grad)
        p.grad.view(-1)[0] = 0.5
    loop.step()


def sets_gradients(loop: Loop) -> None:
    loop.backward(0)
    first = [gradient.clone() for gradient in gradients_of(loop)]
    loop.optimizer.zero_grad()
    loop.backward(1)
    for p, gradient in zip(loop.parameters, first, strict=True):
        assert p.grad is not None
        p.grad = p.grad - 0.5 * gradient
    loop.step()


def sets_gradients_that_it_goes_on_changing(loop: Loop) -> Any:
    given = [torch.full_like(p, 0.1) for p in loop.parameters]
    for p, gradient in zip(loop.parameters, given, strict=True):
        p.grad = gradient
        gradient.mul_(0.5)
    clip_grad_norm_(loop.parameters, 0.01)
    loop.step()
    return given


def keeps_a_gradient(loop: Loop) -> Any:
    loop.backward(0)
    held = gradients_of(loop)
    loop.optimizer.zero_grad()
    loop.backward(1)
    seen = [gradient.clone() for gradient in held]
    loop.step()
    return seen


def zeroes_in_place(loop: Loop) -> Any:
    for step in range(3):
        for gradient in gradients_of(loop):
            gradient.detach_().zero_()
        loop.backward(step)
        loop.optimizer.step()
    return gradients_of(loop)[0].clone()


def leaves_zeros(loop: Loop) -> Any:
    for step in range(2):
        loop.optimizer.zero_grad(set_to_none=False)
        seen = [gradient.abs().sum() for gradient in gradients_of(loop)]
        loop.backward(step)
        loop.optimizer.step()
    loop.optimizer.zero_grad(set_to_none=False)
    loop.optimizer.step()
    loop.optimizer.zero_grad()
    return seen


def never_zeroes(loop: Loop) -> None:
    for step in range(3):
        loop.backward(step)
        clip_grad_norm_(loop.parameters, 0.01)
        loop.optimizer.step()


def steps_again(loop: Loop) -> None:
    loop.backward()
    loop.optimizer.step()
    loop.optimizer.step()
    loop.optimizer.zero_grad()


def scales_losses(loop: Loop) -> Any:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for step in range(4):
        scaler.scale(loop.loss(step)).backward()
        if step % 2:
            scaler.unscale_(loop.optimizer)
            clip_grad_norm_(loop.parameters, 0.01)
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
    return scaler.get_scale()


def overflows(loop: Loop) -> Any:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(3):
        loss = scaler.scale(loop.loss(step))
        (loss * float("inf") if step == 1 else loss).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
    return scaler.get_scale()


def reads_states(loop: Loop) -> Any:
    state = loop.optimizer.state
    held = [p for p in loop.parameters if p in state]
    return [(state[p]["exp_avg"].norm(), state[p]["exp_avg_sq"].clone()) for p in held]


def counts_states(loop: Loop) -> Any:
    states = loop.optimizer.state
    return len(states), [float(state["step"]) for state in states.values()]


def decays_states(loop: Loop) -> None:
    for state in loop.optimizer.state.values():
        state["exp_avg"].mul_(0.5)
        state["exp_avg_sq"][0] = 1.0
        state["step"].fill_(7.0)


def replaces_states(loop: Loop) -> None:
    for p, state in loop.optimizer.state.items():
        state["exp_avg"] = torch.zeros_like(p)
        loop.optimizer.state[p] = {**state, "exp_avg_sq": torch.ones_like(p)}


def forgets_states(loop: Loop) -> None:
    del loop.optimizer.state[loop.parameters[0]]
    loop.optimizer.state[loop.parameters[1]].clear()
    loop.train(1)
    loop.optimizer.state = defaultdict(dict)
    loop.train(1)


def moves_states(loop: Loop) -> None:
    for state in loop.optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, Tensor):
                state[key] = value.cpu().clone()


def hooks_gradients(loop: Loop) -> None:
    handles = [p.register_hook(lambda gradient: gradient * 0.5) for p in loop.parameters]
    loop.train(1)
    for handle in handles:
        handle.remove()


def retains_the_graph(loop: Loop) -> Any:
    loss = loop.loss(1)
    loss.backward(retain_graph=True)
    first = [gradient.clone() for gradient in gradients_of(loop)]
    loss.backward()
    loop.step()
    return first


def accumulates_in_turns(loop: Loop) -> Any:
    norms = []
    for step in range(4):
        loop.backward(step)
        norms += [gradient.norm() for gradient in gradients_of(loop)]
        if step % 2:
            loop.step()
    return norms


def adds_losses(loop: Loop) -> None:
    first, second = loop.loss(0), loop.loss(1)
    with torch.no_grad():
        loop.loss(2)
    (first * 0.3 + second).backward()
    loop.step()


LINES: list[Lines] = [
    *(clips_by_norm, clips_not_at_all, clips_by_infinity, clips_each_layer, clips_twice),
    *(clips_between_backwards, clips_by_value, clips_by_hand, clips_by_lists, reads_norms),
    *(reads_clipped, adds_noise, sets_gradients, sets_gradients_that_it_goes_on_changing),
    *(keeps_a_gradient, zeroes_in_place, leaves_zeros, never_zeroes, steps_again),
    *(scales_losses, overflows, reads_states, counts_states, decays_states, replaces_states),
    *(forgets_states, moves_states, hooks_gradients, retains_the_graph, accumulates_in_turns),
    *(adds_losses,),
]


@pytest.mark.parametrize(("lines", "is_on_disk"), some_in_a_row(LINES))
def test_a_loop_sees_and_leaves_what_it_does_plainly(
    lines: Lines, is_on_disk: bool, tmp_path: Path
) -> None:
    found = outcome(lines, folder=tmp_path / "store" if is_on_disk else None)
    assert are_equal(found, outcome(lines, streams=False))
