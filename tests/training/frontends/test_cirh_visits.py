"""A step of a graph is planned as visits, in which the device has the weights of a layer."""

from pathlib import Path

import pytest

from openwafer.cli.app import app
from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.official.text import read_graph
from openwafer.training.frontends.official.visits import StepPlan, layer_of, plan_step
from tests.training.frontends.cirh_graphs import products_with_momentum


def planned(*, clips: bool) -> StepPlan:
    return plan_step(read_graph(products_with_momentum(clips=clips), "cirh.mlir"))


def layers_of(plan: StepPlan) -> list[str]:
    return [" ".join(sorted(visit.layers)) for visit in plan.visits]


def test_layers_come_forward_and_backward_and_are_updated_on_their_way_back() -> None:
    plan = planned(clips=False)
    assert layers_of(plan) == ["blocks.0", "blocks.1", "blocks.0", ""]
    assert [len(visit.writes) for visit in plan.visits] == [0, 2, 2, 0]
    assert plan.waiting == {"%6": "blocks.0"}


def test_gradients_wait_where_a_norm_of_all_is_wanted() -> None:
    plan = planned(clips=True)
    assert plan.waiting == {"%7": "blocks.0"}
    assert layers_of(plan) == ["blocks.0", "blocks.1", "blocks.0", ""]


def test_states_belong_to_the_layer_whose_weight_they_update() -> None:
    held = [one.resource for one in planned(clips=True).records["blocks.1"]]
    assert held == ["state.model.blocks.1.weight", "state.optimizer.state.1.momentum"]


def test_what_follows_from_resources_and_constants_is_computed_when_it_is_wanted() -> None:
    plan = planned(clips=True)
    assert {"%cst", "%0", "%b0", "%b1"} <= plan.derived.keys()
    assert not {"%1", "%5", "%m0"} & plan.derived.keys()


@pytest.mark.parametrize(
    ("resource", "layer"),
    [
        ("state.model.transformer.h.11.attn.q.weight", "transformer.h.11"),
        ("state.model.wte.weight", "wte"),
        ("state.model.scale", "scale"),
    ],
)
def test_an_element_of_a_list_is_a_layer(resource: str, layer: str) -> None:
    assert layer_of(resource) == layer


def test_the_command_tells_layers_visits_and_what_cannot_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cirh.mlir"
    path.write_text(products_with_momentum(clips=True).replace("cirh.Div", "cirh.Fft"))
    app(["cirh", "show", str(path)], standalone_mode=False)
    told = capsys.readouterr().out
    assert "The device has at most 64 bytes of weights at once; the model has 128." in told
    assert "64 bytes of gradients wait in the store" in told
    assert "cirh.Fft: 2, the first in line 20" in told


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"cirh-file.*cannot read .*nope.mlir: No such file"):
        app(["cirh", "show", str(tmp_path / "nope.mlir")], standalone_mode=False)
