"""Sparse weights of the present style: masks, the steps that change them, and the plain loop."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.present import cstorch, sparse
from openwafer.training.frontends.present.functional import sparse_act_matmul
from openwafer.training.sparsity.masks.structures import num_kept
from tests.tables import case
from tests.training.frontends.present_scripts import PlainScript, PresentScript, adamw, executor_of
from tests.training.stream.both_loops import differing


def sparsified(script: PlainScript, config: Any) -> sparse.SparsityAlgorithm:
    torch.manual_seed(3)
    cstorch.compile(script.model)
    found = cstorch.sparse.configure(config)
    script.model.apply(found)
    script.optimizer.apply(found)  # type: ignore[attr-defined]
    return found


def masks_of(script: PlainScript) -> dict[str, Tensor]:
    state = script.model.state_dict()
    return {name: mask.clone() for name, mask in state.items() if name.endswith("_mask")}


CONFIGS: dict[str, Any] = {
    "static": 0.5,
    "groups": {
        "groups": [
            {"sparsity": 0.75, "init_method": "topk", "param_filter": "*mlp*"},
            {"algorithm": "SET", "sparsity": 0.5, "update": {"freq": 2}, "drop_fraction": 0.5},
        ]
    },
    "gmp": {
        "algorithm": "gmp",
        "schedule": {"type": "linear", "init": 0.0, "slope": 0.2},
        "update": {"freq": 1},
        "init_method": "topk",
    },
    "rigl": {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}},
}


@pytest.mark.parametrize("name", [case(n, by_default=i == 0) for i, n in enumerate(CONFIGS)])
def test_masks_and_losses_are_those_of_the_plain_loop(name: str) -> None:
    plain, found = PlainScript(adamw), PresentScript(adamw)
    sparsified(plain, CONFIGS[name]).initialize()
    sparsified(found, CONFIGS[name])
    assert found.train().losses == plain.train().losses
    assert differing(found.weights(), plain.weights()) == []
    for mask_name, mask in masks_of(found).items():
        weight = found.model.state_dict()[mask_name.removesuffix("_mask")]
        assert not weight[~mask].any()


def test_the_default_filter_leaves_embeddings_norms_and_vectors_dense() -> None:
    script = PlainScript(adamw)
    sparsified(script, 0.5).initialize()
    named = dict(script.model.named_parameters())
    words = ("embedding", "norm", "lm_head", "pe_helper")
    expected = {
        f"{name}_mask"
        for name, p in named.items()
        if p.ndim > 1 and not any(word in name for word in words)
    }
    assert masks_of(script).keys() == expected
    for name, mask in masks_of(script).items():
        assert int(mask.sum()) == num_kept(0.5, named[name.removesuffix("_mask")].numel())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.layer(x).sum()
        return total


def trained(make: Callable[[], sparse.SparsityAlgorithm], steps: int) -> tuple[Net, Any]:
    cstorch.backend("CPU")
    torch.manual_seed(0)
    net = cstorch.compile(Net())
    optimizer = cstorch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    sparsity = make()
    sparsity.apply(net)
    sparsity.apply(optimizer)

    @cstorch.trace
    def step(batch: Tensor) -> None:
        net(batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    for batch in executor_of([torch.rand(2, 4) for _ in range(steps)]):
        step(batch)
    assert isinstance(net, Net)
    return net, sparsity


def test_gmp_prunes_by_its_schedule() -> None:
    schedule = {"type": "linear", "init": 0.0, "slope": 0.125}
    net, sparsity = trained(lambda: sparse.GMP(sparsity=schedule, init_method="topk"), 4)
    mask = net.get_buffer("layer.weight_mask")
    assert (int(mask.sum()), sparsity.step, sparsity.num_sparse_params) == (8, 4, 1)
    assert not net.layer.weight[~mask].any()


def test_the_number_that_a_drop_fraction_leaves_is_rounded_down() -> None:
    """Of 8 weights 0.3 leaves 5; others have larger gradients than those that were kept."""
    cstorch.backend("CPU")
    net = Net()
    cstorch.compile(net)
    optimizer = cstorch.optim.SGD(net.parameters(), lr=0.0)
    sparsity = sparse.RigL(sparsity=0.5, update={"freq": 1}, drop_fraction=0.3)
    sparsity.apply(net)
    sparsity.apply(optimizer)
    sparsity.initialize()
    before = net.get_buffer("layer.weight_mask").clone()
    (net.layer.weight * (2.0 - before.float())).sum().backward()
    optimizer.step()
    mask = net.get_buffer("layer.weight_mask")
    assert (int((before & mask).sum()), int(mask.sum())) == (5, 8)


def test_updates_that_begin_later_find_a_dense_weight() -> None:
    update = {"freq": 2, "start": 2}
    net, _ = trained(lambda: sparse.SET(sparsity=0.5, update=update, drop_fraction=0.5), 1)
    assert net.get_buffer("layer.weight_mask").all()


def test_a_mask_of_a_checkpoint_stays() -> None:
    net, _ = trained(lambda: sparse.Static(sparsity=0.5), 1)
    state, other = net.state_dict(), Net()
    again = sparse.Static(sparsity=0.5)
    again.apply(other)
    other.load_state_dict(state)
    again.initialize()
    assert torch.equal(other.get_buffer("layer.weight_mask"), state["layer.weight_mask"])


def test_sparsity_of_no_model_is_told() -> None:
    script = PresentScript(adamw)
    cstorch.sparse.configure(0.5)
    with pytest.raises(OpenwaferError, match="its sparsity was applied to no model"):
        script.train(0, 1)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (1.5, r"expected in \[0, 1\), found 1.5"),
        ({"sparsity": 0.5, "algorithm": "prune"}, "prune"),
        ({"sparsity": 0.5, "balance": 2}, "balance"),
    ],
)
def test_a_config_that_cannot_be_is_told(config: Any, words: str) -> None:
    cstorch.backend("CPU")
    with pytest.raises(OpenwaferError, match=words):
        cstorch.sparse.configure(config)


def test_sparsity_of_what_is_no_model_is_told() -> None:
    cstorch.backend("CPU")
    with pytest.raises(OpenwaferError, match="sparsity is applied to a int"):
        sparse.Static(sparsity=0.5).apply(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("held", [float("inf"), float("nan"), 7.0])
def test_a_masked_row_reaches_neither_product_nor_gradients(held: float) -> None:
    rows = torch.tensor([[1.0, 2.0], [held, held]], requires_grad=True)
    weight = torch.ones(1, 2, requires_grad=True)
    product = sparse_act_matmul(rows, torch.tensor([1, 0]), weight)
    product.sum().backward()
    assert product.tolist() == [[3], [0]]
    assert rows.grad is not None
    assert weight.grad is not None
    assert (rows.grad.tolist(), weight.grad.tolist()) == ([[1, 1], [0, 0]], [[1, 2]])
