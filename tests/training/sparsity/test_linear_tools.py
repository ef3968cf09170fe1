"""What torch's tools see of a sparse product: shapes without numbers, FLOPs, graphs, threads."""

import os
import threading

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from openwafer.training.sparsity.kernels.index import Index
from openwafer.training.sparsity.linear import sparse_linear
from tests.training.sparsity.dense_oracle import case_of


def test_fake_tensors_pass_forward_and_backward() -> None:
    case = case_of(30, 40, 7, 0.8)
    index, given = case.index, (case.inputs, case.values, case.bias)
    with FakeTensorMode() as mode:
        fake = Index(index.shape, index.num_kept, mode.from_tensor(index.words))
        x, values, bias = (mode.from_tensor(tensor).requires_grad_() for tensor in given)
        output = sparse_linear(x, values, fake, bias)
        output.sum().backward()
    assert output.shape == (7, 30)
    for leaf in (x, values):
        assert leaf.grad is not None
        assert leaf.grad.shape == leaf.shape


@pytest.mark.parametrize(("of_inputs", "of_values"), [(True, True), (True, False), (False, True)])
def test_only_kept_positions_count_as_flops(of_inputs: bool, of_values: bool) -> None:
    case = case_of(30, 40, 7, 0.8)
    x, values = case.inputs.requires_grad_(of_inputs), case.values.requires_grad_(of_values)
    with FlopCounterMode(display=False) as counter:
        sparse_linear(x, values, case.index).sum().backward()
    num_products = 1 + of_inputs + of_values
    assert counter.get_total_flops() == num_products * 2 * 7 * case.pattern.num_kept


# Of what the compiler imports.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_function_gives_the_same_bits(backend: str) -> None:
    case = case_of(30, 40, 70, 0.8)
    index = case.index

    def double(x: Tensor, values: Tensor) -> Tensor:
        return sparse_linear(x * 2, values, index)

    x, values = case.inputs, case.values.requires_grad_()
    expected = double(x, values)
    (of_values,) = torch.autograd.grad(expected, values, case.gradient)
    output = torch.compile(double, backend=backend, fullgraph=True)(x, values)
    assert torch.equal(output, expected)
    assert torch.equal(torch.autograd.grad(output, values, case.gradient)[0], of_values)


def test_torch_finds_nothing_wrong_with_the_operator() -> None:
    case = case_of(12, 15, 70, 0.5)
    x, values, bias = (t.requires_grad_() for t in (case.inputs, case.values, case.bias))
    operator = torch.ops.openwafer.sparse_linear.default
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    given = (x, values, bias, case.index.words, 12, False)
    torch.library.opcheck(operator, given, test_utils=tests)


def test_a_product_inside_a_forked_process_is_the_same() -> None:
    case = case_of(300, 400, 200, 0.8)
    values, index = case.values, case.index
    expected = sparse_linear(case.inputs, values, index).numpy().tobytes()
    child = os.fork()
    if child == 0:
        # No other work of torch: its threads stayed behind, and it would wait for them.
        output = sparse_linear(case.inputs, values, index).numpy().tobytes()
        os._exit(0 if output == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_products_in_several_threads_at_once_are_the_same() -> None:
    case = case_of(300, 400, 200, 0.8)
    expected = sparse_linear(case.inputs, case.values, case.index)
    found: list[Tensor] = []

    def multiply() -> None:
        found.extend(sparse_linear(case.inputs, case.values, case.index) for _ in range(5))

    threads = [threading.Thread(target=multiply) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    assert all(torch.equal(output, expected) for output in found)
