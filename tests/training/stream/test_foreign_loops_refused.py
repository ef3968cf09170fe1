"""What a loop cannot do with a model that streams is refused at its line, with a remedy."""

import copy
import pickle
import warnings
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import stream_weights
from openwafer.training.plan_record import Activations
from tests.training.stream.foreign_loops import (
    SIZE,
    Lines,
    Loop,
    Small,
    are_equal,
    new_loop,
    outcome,
    stream,
)


def first(loop: Loop) -> nn.Parameter:
    return loop.parameters[1]


def sets_other_data(loop: Loop) -> None:
    first(loop).data = torch.ones(SIZE, SIZE, dtype=torch.float64)


def sets_strided_data(loop: Loop) -> None:
    first(loop).data = torch.ones(SIZE, SIZE).t()


def shares_data(loop: Loop) -> None:
    first(loop).data = loop.parameters[3].data


def sets_another_gradient(loop: Loop) -> None:
    first(loop).grad = torch.ones(3)


def writes_while_autograd_records(loop: Loop) -> None:
    first(loop).mul_(2.0)


def swaps_tensors(loop: Loop) -> None:
    torch.utils.swap_tensors(first(loop), nn.Parameter(torch.ones(SIZE, SIZE)))
    loop.loss(1)


def waits_for_gradients(loop: Loop) -> None:
    first(loop).register_post_accumulate_grad_hook(lambda _: None)


def reads_in_the_backward(loop: Loop) -> None:
    def read(_: Tensor) -> None:
        assert loop.parameters[-1].grad is None

    first(loop).register_hook(read)
    loop.backward()


def writes_before_the_layer_runs_again(loop: Loop) -> None:
    loss = loop.loss(1)
    first(loop).data.mul_(0.5)
    loss.backward()


def differentiates_twice(loop: Loop) -> None:
    torch.autograd.grad(loop.loss(1), loop.parameters, create_graph=True)


def differentiates_by_func(loop: Loop) -> None:
    torch.func.grad(lambda x: loop.model(x).sum())(torch.ones(4, SIZE))


def maps_a_batch(loop: Loop) -> None:
    torch.func.vmap(loop.model)(torch.ones(3, 4, SIZE))


def steps_between(loop: Loop) -> None:
    losses = [loop.loss(1), loop.loss(2)]
    losses[0].backward()
    loop.step()
    losses[1].backward()


def names_inputs(loop: Loop) -> None:
    loop.loss(1).backward(inputs=[first(loop)])


def compiles_the_whole(loop: Loop) -> None:
    torch.compile(loop.model, backend="eager")(torch.ones(4, SIZE))


def hooks_by_the_class(loop: Loop) -> None:
    torch.optim.Optimizer.register_step_pre_hook(loop.optimizer, lambda *_: None)
    loop.train(1)


LINES: dict[Lines, str] = {
    sets_other_data: r"inlet.weight.data was given \(32, 32\) torch.float64.*\n.*close\(\), change",
    sets_strided_data: r"strides \(1, 32\), .* strides \(32, 1\)\n.*give a .*those strides",
    shares_data: r"'layers.0.0.weight' is in the .* shares memory with nothing\n.*with \.clone\(\)",
    sets_another_gradient: r"inlet.weight.grad was given \(3,\)",
    writes_while_autograd_records: r"is written in place while autograd .*\n.*under torch.no_grad",
    waits_for_gradients: r"waits for the gradient of 'inlet.wei.*\n.*use parameter.register_hook",
    writes_before_the_layer_runs_again: r"written or updated between .*\n.*write .* after backward",
    differentiates_twice: r"create_graph=True\) came to .*\n.*leave create_graph out",
    differentiates_by_func: r"runs inside torch.func's grad.*\n.*torch.autograd.grad",
    maps_a_batch: r"runs inside torch.func's vmap.*\n.*give a batch a dim of its own",
    names_inputs: r"inputs=...\) names streamed weights, .*\n.*autograd.grad\(loss, weights\)",
    hooks_by_the_class: r"lambda> is to run before the step of AdamW.*\n.*not by the class",
    compiles_the_whole: r"is compiled as a whole.*\n.*for layer in model.layers: layer.compile\(\)",
    reads_in_the_backward: r"'layers.2.1.bias' is asked for while .*\n.*after backward",
    lambda loop: loop.model.half(): r"float32 weights on cpu, and is to have torch.float16 ones",
    lambda loop: loop.model.to(torch.bfloat16): r"streamed.close\(\), change the model, and stream",
    lambda loop: loop.model.get_submodule("layers").double(): r"was given .* torch.float64",
    lambda loop: loop.optimizer.add_param_group(
        {"params": torch.ones(1)}
    ): r"has 16 parameters now and had 15",
    lambda loop: copy.deepcopy(loop.model): r"copy the model before stream_weights",
    lambda loop: copy.deepcopy(loop.parameters): r"cannot be copied or pickled",
    lambda loop: copy.deepcopy(loop.optimizer): r"copy or save optimizer.state_dict\(\)",
    lambda loop: pickle.dumps(loop.model): r"cannot be copied or pickled with it",
    lambda loop: first(loop).data_ptr(): r"has no memory of its own.*\n.*take a copy with .clone",
    lambda loop: first(loop).data.share_memory_(): r"no memory of its own to point to",
    swaps_tensors: r"another tensor was put in the place of 'inlet.weig.*\n.*data.copy_\(value\)",
}


@pytest.mark.parametrize("first", range(0, len(LINES), 5))
def test_lines_that_cannot_work_are_refused_there(first: int) -> None:
    """Five in one loop, whose plan they share; what changes it stands last."""
    loop = new_loop()
    with stream(loop, policy=Activations.RECOMPUTE):
        loop.train(1)
        for lines, message in [*LINES.items()][first : first + 5]:
            with pytest.raises(OpenwaferError, match=message):
                lines(loop)


@pytest.mark.slow
@pytest.mark.parametrize(("lines", "message"), LINES.items(), ids=map(str, range(len(LINES))))
def test_a_line_that_cannot_work_is_refused_there(lines: Lines, message: str) -> None:
    loop = new_loop()
    with stream(loop, policy=Activations.RECOMPUTE):
        loop.train(1)
        with pytest.raises(OpenwaferError, match=message):
            lines(loop)


class Clamped(nn.Linear):
    """Holds its weights in bounds by itself."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


class Shrunk(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = self.weight.data * 0.99
        return super().forward(x)


class Sparse(nn.Module):
    """Multiplies by a weight of a sparse layout."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(SIZE).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.weight, x.T).T  # type: ignore[no-any-return]


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, SIZE, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.long().abs())  # type: ignore[no-any-return]


def scripted(size: int) -> nn.Module:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return torch.jit.script(nn.Linear(size, size))


def with_layer(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        model = Small()
        model.layers[1] = build()
        return model

    return made


class SharesMemory(nn.Linear):
    """Has a row of its weight as a buffer."""

    def __init__(self) -> None:
        super().__init__(SIZE, SIZE)
        self.register_buffer("row", self.weight.detach()[0])


def tied_by_data() -> Small:
    model = Small()
    inner = [model.get_submodule(f"layers.{index}.0") for index in (0, 2)]
    inner[1].get_parameter("weight").data = inner[0].get_parameter("weight").data
    return model


class Accelerating(nn.Linear):
    """Looks at the gradient that its weight has."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if self.weight.grad is None else out * 2


class Zeroing(nn.Linear):
    """Has its own gradients zeroed."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.grad = None
        return super().forward(x)


def accelerating() -> nn.Module:
    return with_layer(lambda: Accelerating(SIZE, SIZE))()


def fails_in_a_backward(loop: Loop) -> None:
    handle = first(loop).register_hook(lambda _: 1 / 0)
    with suppress(ZeroDivisionError):
        loop.backward(1)
    handle.remove()


MODELS: list[tuple[Callable[[], nn.Module], str]] = [
    (with_layer(lambda: Clamped(SIZE, SIZE)), r"forward writes to the weight 'layers.1.weight'"),
    (with_layer(lambda: Shrunk(SIZE, SIZE)), r"writes to the weight .*\n.*between two steps"),
    (with_layer(Looked), r"table has sparse=True.*\n.*build it with sparse=False"),
    (
        with_layer(Sparse),
        r"weight' has torch's layout sparse_coo(.|\n)*a run with the key sparsity",
    ),
    (with_layer(SharesMemory), r"and 'layers.1.row' share memory.*\n.*with .clone\(\)"),
    (tied_by_data, r"'layers.[02].0.weight' and 'layers.[02].0.weight' share memory"),
    (with_layer(lambda: scripted(SIZE)), r"layers.1 is scripted.*\n.*leave torch.jit.script out"),
]


@pytest.mark.parametrize(("build", "message"), MODELS, ids=map(str, range(len(MODELS))))
def test_a_model_that_cannot_stream_is_refused(
    build: Callable[[], nn.Module], message: str
) -> None:
    loop = new_loop(build)
    with pytest.raises(OpenwaferError, match=message), stream(loop):
        loop.backward()


@pytest.mark.parametrize("build", [accelerating, with_layer(lambda: Zeroing(SIZE, SIZE))])
@pytest.mark.parametrize("before", [Loop.backward, fails_in_a_backward])
def test_a_forward_that_uses_the_gradient_of_its_own_weight_is_refused_if_there_is_one(
    build: Callable[[], nn.Module], before: Lines
) -> None:
    loop = new_loop(build)
    with stream(loop):
        loop.train(1)
        before(loop)
        told = r"forward of its layer uses the gradient of 'layers.1.weight'.*\n.*between two forw"
        with pytest.raises(OpenwaferError, match=told):
            loop.backward(2)


def test_a_forward_that_finds_no_gradient_trains_as_in_a_plain_loop() -> None:
    expected = outcome(Loop.train, build=accelerating, streams=False)
    assert are_equal(outcome(Loop.train, build=accelerating), expected)


def test_a_backward_behind_the_step_of_another_is_refused_as_in_a_plain_loop() -> None:
    plain, loop = new_loop(), new_loop()
    for one in (plain, loop):
        one.optimizer = torch.optim.AdamW(one.parameters, lr=1e-2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        steps_between(plain)
    with (
        stream(loop, policy=Activations.KEEP),
        pytest.raises(OpenwaferError, match=r"an optimizer has stepped since.*\n.*forward again"),
    ):
        steps_between(loop)


def test_weights_without_a_shape_are_refused() -> None:
    model = nn.Sequential(nn.LazyLinear(SIZE))
    with pytest.raises(OpenwaferError, match=r"'0.weight' has no shape .*\n.*call the model once"):
        stream_weights(model, torch.optim.SGD(model.parameters()), device_memory="1MiB")


def test_a_model_that_was_compiled_as_a_whole_is_refused() -> None:
    loop = new_loop()
    loop.model.compile(backend="eager")
    with pytest.raises(OpenwaferError, match=r"is compiled as a whole"):
        stream(loop)


def test_a_hook_that_waits_for_gradients_is_refused_before_the_first_step() -> None:
    loop = new_loop()
    waits_for_gradients(loop)
    with stream(loop), pytest.raises(OpenwaferError, match=r"waits for the gradient of"):
        loop.backward()


def test_a_refused_change_of_the_model_changes_nothing() -> None:
    loop = new_loop()
    loop.model.register_buffer("count", torch.ones(2))
    with stream(loop):
        loop.train(1)
        with pytest.raises(OpenwaferError, match=r"is to have torch.float16 ones"):
            loop.model.half()
        assert loop.model.get_buffer("count").dtype is torch.float32
