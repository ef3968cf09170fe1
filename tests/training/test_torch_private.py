"""What the names that torch does not promise to keep have to do for us."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from openwafer.training import torch_private as names


def test_a_pass_backward_has_a_number_and_no_other_time_has() -> None:
    seen = []
    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(lambda _: seen.append(names.graph_task_id()))
    weight.sum().backward()
    assert names.graph_task_id() == -1
    assert seen[0] >= 0


def test_the_next_node_gets_the_number_that_is_told() -> None:
    expected = names.next_sequence_nr()
    node = torch.ones(1, requires_grad=True).sin().grad_fn
    assert node is not None
    assert node._sequence_nr() == expected  # noqa: SLF001


def test_the_innermost_function_mode_is_known() -> None:
    assert names.current_function_mode() is None
    with TorchFunctionMode(), TorchFunctionMode() as inner:
        assert names.current_function_mode() is inner


def test_recording_is_switched_without_a_context() -> None:
    names.set_grad_enabled(False)
    try:
        assert not torch.is_grad_enabled()
    finally:
        names.set_grad_enabled(True)


def test_hooks_for_saved_tensors_are_taken_and_put_back() -> None:
    pair = (lambda tensor: tensor, lambda tensor: tensor)
    with torch.autograd.graph.saved_tensors_hooks(*pair):
        assert tuple(names.top_saved_tensors_hooks(True)) == pair
        names.pop_saved_tensors_hooks()
        assert names.top_saved_tensors_hooks(True) is None
        names.push_saved_tensors_hooks(*pair)


def test_transforms_and_tangents_are_seen_from_inside() -> None:
    inside = []

    def tell(x: torch.Tensor) -> torch.Tensor:
        inside.append((names.functorch_interpreter() is not None, names.forward_level()))
        return x.sin()

    torch.func.vmap(tell)(torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        tell(torch.ones(2))
    tell(torch.ones(2))
    assert inside == [(True, -1), (False, 0), (False, -1)]


def test_tensors_of_a_storage_are_counted() -> None:
    tensor = torch.ones(4)
    address = tensor.untyped_storage()._cdata
    before = names.storage_use_count(address)
    view = tensor[1:]
    assert names.storage_use_count(address) == before + 1
    assert names.neg_view(view).is_neg()


def test_a_dispatch_mode_is_left_and_entered_again() -> None:
    with names.FakeTensorMode() as mode:
        assert names.num_dispatch_modes() == 1
        names.unset_dispatch_mode(names.DispatchModeKey.FAKE)
        assert not names.is_fake(torch.ones(1))
        names.set_dispatch_mode(mode)
        assert names.is_fake(torch.ones(1))
        with names.disable_current_modes():
            assert not names.is_fake(torch.ones(1))


def test_a_fake_mode_works_operators_out_without_torchs_cache() -> None:
    before = names.FakeTensorMode.cache_info()
    with names.FakeTensorMode() as mode:
        mode.cache_enabled = False
        assert (torch.ones(3, 5) + 1).shape == (3, 5)
    assert names.FakeTensorMode.cache_info() == before


@pytest.mark.parametrize("device", [torch.device("cpu"), torch.device("cuda:0")], ids=str)
def test_a_fake_tensor_is_what_the_constructor_of_torch_makes(device: torch.device) -> None:
    mode, bare = names.FakeTensorMode(), torch.empty_strided((2, 3), (1, 2), device="meta")
    made = names.make_fake(mode, bare, device)
    expected = names.FakeTensor(mode, bare, device)
    assert vars(made) == vars(expected)
    assert vars(made) is not vars(names.make_fake(mode, bare, device))
    assert (made.device, made.shape, made.stride()) == (device, (2, 3), (1, 2))
    assert made.untyped_storage()._cdata == bare.untyped_storage()._cdata
    assert torch._C._dispatch_keys(made) == torch._C._dispatch_keys(expected)  # noqa: SLF001


def test_an_operator_is_another_for_the_time_of_a_context() -> None:
    with names.scoped_library("aten", "IMPL") as library:
        library.impl("dropout", lambda x, *_: x + 1, "AutogradCPU")
        assert torch.dropout(torch.zeros(1), 0.0, train=False) == 1
    assert torch.dropout(torch.zeros(1), 0.0, train=False) == 0


@pytest.mark.parametrize("decoupled", [False, True])
def test_the_kernel_of_adam_takes_the_step_of_the_optimizer(decoupled: bool) -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    weight.grad = torch.tensor([0.5, 0.25])
    kernel: Any = names.fused_adamw if decoupled else names.fused_adam
    given, state = weight.detach().clone(), [torch.zeros(2) for _ in range(2)]
    numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
    switches = {"amsgrad": False, "maximize": False}
    grads, step = [weight.grad.clone()], [torch.ones(())]
    kernel([given], grads, *([one] for one in state), [], step, **numbers, **switches)
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    kind([weight], lr=0.1, betas=(0.9, 0.99), weight_decay=0.1, fused=True).step()
    assert torch.equal(given, weight.detach())


def test_the_kernels_of_a_scaler_divide_and_find_what_is_not_finite() -> None:
    gradient, found = torch.tensor([4.0, torch.inf]), torch.zeros(1)
    names.unscale_and_check([gradient], found, torch.tensor(0.5))
    assert gradient[0] == 2
    assert found == 1
    scale, good = torch.tensor(8.0), torch.zeros((), dtype=torch.int32)
    names.update_scale(scale, good, found, 2.0, 0.5, 10)
    assert scale == 4


def test_tensors_are_grouped_by_dtype() -> None:
    given: list[torch.Tensor | None] = [torch.ones(1), torch.ones(1).half(), torch.zeros(1)]
    groups = names.group_tensors([given])
    assert sorted(len(group[0]) for group, _ in groups.values()) == [1, 2]


def test_what_the_compiler_made_is_told_from_a_module() -> None:
    layer = nn.Linear(1, 1)
    assert not names.is_of_compiler(layer)
    assert names.is_of_compiler(torch.compile(layer, backend="eager"))  # type: ignore[arg-type]


def test_all_batch_norms_are_of_one_kind() -> None:
    assert isinstance(nn.BatchNorm1d(1), names.NormBase)
    assert isinstance(nn.SyncBatchNorm(1), names.NormBase)


def test_a_subclass_of_tensor_is_seen_as_it_is() -> None:
    weight = nn.Parameter(torch.ones(1))
    with names.DisableTorchFunctionSubclass():
        assert names.has_compatible_shallow_copy_type(weight, weight)
    assert names.active_ddp_module() is None


class Seen(TorchFunctionMode):
    """Functions that were called."""

    num_calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_calls += 1
        return func(*args, **(kwargs or {}))


def test_shapes_can_be_read_unseen_by_modes_that_watch_functions() -> None:
    weight = torch.ones(2)
    with Seen() as mode, names.DisableTorchFunction():
        assert weight.shape == (2,)
    assert mode.num_calls == 0


def test_hooks_before_a_step_are_told_in_their_order() -> None:
    optimizer, hooks = torch.optim.SGD([nn.Parameter(torch.ones(1))]), [max, min]
    for hook in hooks:
        optimizer.register_step_pre_hook(hook)
    assert names.step_pre_hooks(optimizer) == hooks


def test_attention_on_a_cpu_tells_the_logarithms_of_its_sums() -> None:
    query, key = torch.randn(2, 1, 1, 40, 8, generator=torch.Generator().manual_seed(0))
    _, found = names.cpu_attention(query, key, key, scale=1.0)
    torch.testing.assert_close(found, (query @ key.mT).logsumexp(-1))


def test_heads_of_attention_on_a_cpu_share_keys() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(heads, 3, 40, 8, generator=generator) for heads in (4, 2))
    query, shared, repeated = (
        one.transpose(0, 1) for one in (query, key, key.repeat_interleave(2, 0))
    )
    found = names.cpu_attention(query, shared, shared, is_causal=True)
    expected = names.cpu_attention(query, repeated, repeated, is_causal=True)
    torch.testing.assert_close(found, expected)
