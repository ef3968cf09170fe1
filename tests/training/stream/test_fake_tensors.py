"""What is remembered of operators is what torch says of their fake tensors, the second time too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from openwafer.training.stream.device.device import MemoryMeter
from openwafer.training.stream.plan.fake_tensors import RememberingFakeMode


def add_nothing_returned(x: Tensor) -> Tensor:
    torch._foreach_add_([x], 1.0)
    return x


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "new tensor": lambda x: x + 1,
    "other type": lambda x: x.to(torch.bfloat16),
    "no copy": lambda x: x.contiguous(),
    "view": lambda x: x.transpose(0, 1)[2:],
    "reshape of a view": lambda x: x.t().reshape(-1),
    "views of one tensor": lambda x: x.split(2),
    "in place": lambda x: x.mul_(2),
    "in place on a view": lambda x: x[1:].zero_(),
    "two tensors": lambda x: x.max(dim=0),
    "nothing in it": lambda x: x[:0] * 2,
    "broadcast": lambda x: x.expand(3, 4, 6) + torch.ones(6),
    "attention": lambda x: scaled_dot_product_attention(x[None], x[None], x[None]),
    "another size": lambda x: x.clone().resize_(2, 2),
    "pieces of pieces": lambda x: x.view(-1)[2:].split(5)[1].view(5, 1),
    "nothing returned": add_nothing_returned,
    "written elsewhere": lambda x: torch.mul(x[0], 2, out=x[1]),
    "complex": lambda x: torch.view_as_complex(x.view(4, 3, 2)).conj(),
}


def kinds(mode: FakeTensorMode, call: Callable[[Tensor], Any]) -> list[object]:
    """Of the tensors that a call returns, and whether they lie in that of its argument."""
    with mode:
        x = torch.zeros(4, 6)
        out = call(x)
    return [
        (
            one.shape,
            one.stride(),
            one.storage_offset(),
            one.dtype,
            one.is_conj(),
            one.untyped_storage().nbytes(),
            one.untyped_storage()._cdata == x.untyped_storage()._cdata,
            one is x,
        )
        for one in ([out] if isinstance(out, Tensor) else out)
    ]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_returns_what_it_does_without_memory_of_calls(call: Callable[[Tensor], Any]) -> None:
    expected = kinds(FakeTensorMode(), call)
    assert [kinds(RememberingFakeMode(), call) for _ in range(3)] == [expected] * 3


def test_integers_and_floats_are_told_apart() -> None:
    with RememberingFakeMode():
        whole = torch.ones(2, dtype=torch.int64)
        assert [(whole + other).dtype for other in (1, 1.0, 1)] == [
            torch.int64,
            torch.float32,
            torch.int64,
        ]


def test_a_call_with_nan_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    with RememberingFakeMode():
        torch.full((2,), float("nan"))
        asked: list[object] = []
        monkeypatch.setattr(FakeTensorMode, "__torch_dispatch__", lambda *args: asked.append(args))
        torch.full((2,), float("nan"))
    assert asked == []


def test_tensors_remember_their_device() -> None:
    with RememberingFakeMode():
        made = [torch.zeros(2, device=name) * 2 for name in ("cpu", "cuda", "cpu", "cuda")]
    assert [one.device.type for one in made] == ["cpu", "cuda", "cpu", "cuda"]


def test_a_shape_that_depends_on_values_is_never_remembered() -> None:
    with RememberingFakeMode(), pytest.raises(RuntimeError, match=r"aten.nonzero"):
        torch.zeros(3).nonzero()


class Between(TorchDispatchMode):
    """Counts what is called under a mode above it."""

    num_calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_calls += func is torch.ops.aten.mul.Tensor
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("name", CALLS)
def test_a_meter_that_takes_what_is_remembered_gets_what_torch_says(name: str) -> None:
    expected = kinds(FakeTensorMode(), CALLS[name])
    kinds(RememberingFakeMode(), CALLS[name])
    mode, meter = RememberingFakeMode(), MemoryMeter()
    meter.call = mode.call

    def metered(x: Tensor) -> Any:
        with meter:
            return CALLS[name](x)

    assert kinds(mode, metered) == expected


def test_a_mode_between_the_meter_and_the_fake_one_sees_what_is_remembered() -> None:
    mode, meter = RememberingFakeMode(), MemoryMeter()
    meter.call = mode.call
    between = Between()  # type: ignore[no-untyped-call]
    with mode, between, meter:
        x = torch.zeros(3)
        for _ in range(3):
            x = x * x
    assert between.num_calls == 3


NORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "layer": lambda x, w: torch.ops.aten.native_layer_norm(x, [6], w, w, 1e-5),
    "group": lambda x, w: torch.ops.aten.native_group_norm(x, w, w, 4, 6, 6, 2, 1e-5),
    "batch": lambda x, w: torch.ops.aten.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5),
    "without weights": lambda x, _: torch.ops.aten.native_layer_norm(x, [6], None, None, 1e-5),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_statistics_of_norms_have_the_format_that_the_cpu_gives(
    name: str, dtype: torch.dtype
) -> None:
    x, weight = torch.randn(4, 6, 6).to(dtype), torch.ones(6)
    with RememberingFakeMode() as mode:
        fakes = [mode.from_tensor(x), mode.from_tensor(weight)]
        twice = [NORMS[name](*fakes) for _ in range(2)]
    real = [one.dtype for one in NORMS[name](x, weight)]
    assert [[one.dtype for one in made] for made in twice] == [real, real]
