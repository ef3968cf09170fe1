"""How a module tree is split into layers: lists, experts, tied weights, patterns, sizes."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.stream.layers import PINNED, Layer, Partition, partition, pin

MATRIX_BYTES = 8 * 8 * 4


def matrix() -> nn.Linear:
    return nn.Linear(8, 8, bias=False)


def split(model: nn.Module, **options: object) -> Partition:
    """The split of a small model, in which no layer is too small."""
    return partition(model, **{"min_layer_bytes": 0, **options})  # type: ignore[arg-type]


def names(found: Partition) -> list[str]:
    return [layer.name for layer in found.layers]


class Decoder(nn.Module):
    """Embedding, a list of blocks of two matrices, a norm, a head."""

    def __init__(self, *, is_tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 8)
        self.blocks = nn.ModuleList(nn.Sequential(matrix(), matrix()) for _ in range(2))
        self.norm = nn.LayerNorm(8)
        self.head = matrix()
        if is_tied:
            self.head.weight = self.embedding.weight


class Routed(nn.Module):
    """A block with a router and experts of its own kind."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 3)
        self.experts = nn.ModuleList(matrix() for _ in range(3))


def test_elements_of_a_list_and_modules_beside_it_are_layers() -> None:
    assert names(split(Decoder())) == ["embedding", "blocks.0", "blocks.1", "norm", "head"]


def test_small_modules_beside_a_list_stay_on_the_device() -> None:
    found = split(Decoder(), min_layer_bytes=MATRIX_BYTES)
    assert found.pinned == ("norm.weight", "norm.bias")


def test_small_elements_of_a_list_are_layers_all_the_same() -> None:
    found = split(Decoder(), min_layer_bytes=1 << 20)
    assert names(found) == ["blocks.0", "blocks.1"]


def test_children_of_a_sequence_are_layers() -> None:
    assert names(split(nn.Sequential(matrix(), nn.ReLU(), matrix()))) == ["0", "2"]


def test_values_of_a_module_dict_are_layers() -> None:
    model = nn.ModuleDict({"text": matrix(), "image": matrix()})
    assert names(split(nn.Sequential(model))) == ["0.text", "0.image"]


def test_a_list_inside_a_wrapper_is_found() -> None:
    model = nn.Module()
    model.backbone = Decoder()
    assert "backbone.blocks.1" in names(split(model))


def test_experts_are_layers_inside_their_block() -> None:
    found = split(nn.Sequential(Routed()))
    parents = {layer.name: layer.parent for layer in found.layers}
    experts = {f"0.experts.{index}": "0" for index in range(3)}
    assert parents == {"0": None, **experts}


def test_elements_of_a_list_in_a_block_without_weights_stand_by_themselves() -> None:
    stage = nn.Sequential(nn.Identity(), nn.ModuleList([matrix(), matrix()]))
    found = split(nn.Sequential(nn.ModuleList([stage])), patterns=("0.0",))
    parents = {layer.name: layer.parent for layer in found.layers}
    assert parents == {"0.0.1.0": None, "0.0.1.1": None}


def test_the_record_of_a_block_leaves_its_experts_out() -> None:
    found = split(nn.Sequential(Routed()))
    assert found.records["0"] == ("0.router.weight", "0.router.bias")


def test_a_tied_weight_has_a_record_of_its_own() -> None:
    found = split(Decoder(is_tied=True))
    assert found.records["shared:embedding.weight"] == ("embedding.weight",)


def test_layers_that_share_a_weight_both_name_its_record() -> None:
    found = split(Decoder(is_tied=True))
    shared = [layer.name for layer in found.layers if layer.shared]
    assert shared == ["embedding", "head"]


def test_a_weight_shared_with_what_is_no_layer_stays_on_the_device() -> None:
    model = Decoder()
    model.extra = nn.Module()
    model.extra.weight = model.head.weight
    found = split(model, min_layer_bytes=10 * MATRIX_BYTES, patterns=("head",))
    assert "head.weight" in found.pinned


def test_a_parameter_of_the_model_itself_stays_on_the_device() -> None:
    model = Decoder()
    model.scale = nn.Parameter(torch.ones(8))
    assert split(model).pinned == ("scale",)


def test_a_pattern_makes_layers_of_what_it_matches() -> None:
    found = split(nn.Sequential(Parts([matrix(), matrix()])), patterns=("0.part*",))
    assert names(found) == ["0.part0", "0.part1"]


def test_what_a_pattern_leaves_of_a_block_is_split_by_itself() -> None:
    found = split(Decoder(), patterns=("blocks.0.0",))
    assert names(found)[1:4] == ["blocks.0.0", "blocks.0.1", "blocks.1"]


def test_a_pattern_that_matches_nothing_is_refused_with_what_there_is() -> None:
    with pytest.raises(OpenwaferError) as refusal:
        split(Decoder(), patterns=("block.*",))
    wanted = ["the layer pattern 'block.*' matches no module", "a module of this model: blocks.0"]
    assert [words for words in wanted if words not in str(refusal.value)] == []


def test_a_layer_over_the_limit_is_split_into_its_children() -> None:
    found = split(Decoder(), max_layer_bytes=MATRIX_BYTES)
    assert names(found)[1:5] == ["blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1"]


def test_a_layer_over_the_limit_with_one_child_stays_whole() -> None:
    found = split(nn.Sequential(nn.Sequential(matrix())), max_layer_bytes=1)
    assert names(found) == ["0"]


def test_a_pattern_that_names_a_list_means_its_elements() -> None:
    assert names(split(Decoder(), patterns=("blocks",)))[1:3] == ["blocks.0", "blocks.1"]


def test_a_block_over_the_limit_leaves_no_list_as_a_layer() -> None:
    found = split(nn.Sequential(Routed()), max_layer_bytes=3 * MATRIX_BYTES)
    assert names(found) == ["0.router", "0.experts.0", "0.experts.1", "0.experts.2"]


def test_a_module_that_is_in_the_model_twice_is_one_layer() -> None:
    block = matrix()
    model = nn.Sequential(nn.ModuleList([block]), nn.ModuleList([block]))
    assert split(model).records == {"0.0": ("0.0.weight",)}


def test_pinning_moves_parameters_out_of_their_layer() -> None:
    found = pin(split(nn.Sequential(Routed())), ["0.router.weight"])
    assert {layer.name: layer.parameters for layer in found.layers}["0"] == ("0.router.bias",)


def test_pinning_the_last_parameter_of_a_layer_ends_the_layer() -> None:
    assert "head" not in names(pin(split(Decoder()), ["head.weight"]))


def test_pinning_a_tied_weight_ends_its_record() -> None:
    found = pin(split(Decoder(is_tied=True)), ["embedding.weight"])
    assert list(found.records) == ["blocks.0", "blocks.1", "norm", PINNED]


class Parts(nn.Module):
    """A module that is no container: a parameter of its own, and parts."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.zeros(8))
        for index, part in enumerate(parts):
            self.add_module(f"part{index}", part)


CONTAINERS: list[Callable[[list[nn.Module]], nn.Module]] = [
    Parts,
    nn.ModuleList,
    lambda parts: nn.Sequential(*parts),
    lambda parts: nn.ModuleDict({f"key{index}": part for index, part in enumerate(parts)}),
]


@st.composite
def module_trees(draw: st.DrawFn) -> nn.Module:
    """Trees of lists, sequences, dicts and plain modules, with some weights tied."""
    makers: list[Callable[[], nn.Module]] = [matrix, nn.ReLU, lambda: nn.LayerNorm(8)]
    leaves = st.sampled_from(makers).map(lambda make: make())
    tree = draw(
        st.recursive(
            leaves,
            lambda children: st.builds(
                lambda make, parts: make(parts),
                st.sampled_from(CONTAINERS),
                st.lists(children, min_size=1, max_size=4),
            ),
            max_leaves=12,
        )
    )
    matrices = [module for module in tree.modules() if type(module) is nn.Linear]
    for first, second in draw(st.lists(st.tuples(*2 * [st.integers(0, 11)]), max_size=2)):
        if max(first, second) < len(matrices):
            matrices[second].weight = matrices[first].weight
    return nn.Sequential(tree)


LIMITS = st.none() | st.integers(1, 4 * MATRIX_BYTES)


@given(module_trees(), LIMITS, st.integers(0, 2 * MATRIX_BYTES))
def test_every_parameter_is_in_exactly_one_record(
    model: nn.Module, max_bytes: int | None, min_bytes: int
) -> None:
    found = partition(model, max_layer_bytes=max_bytes, min_layer_bytes=min_bytes)
    held = Counter(name for held in found.records.values() for name in held)
    assert held == Counter(name for name, _ in model.named_parameters())


def innermost(found: Partition, parameter: str) -> Layer | None:
    """The layer that a parameter name lies in."""
    around = [layer for layer in found.layers if parameter.startswith(layer.name + ".")]
    return max(around, key=lambda layer: len(layer.name), default=None)


@given(module_trees(), LIMITS)
def test_a_layer_names_the_record_of_every_parameter_in_it(
    model: nn.Module, max_bytes: int | None
) -> None:
    found = split(model, max_layer_bytes=max_bytes)
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    record_of = {name: record for record, held in found.records.items() for name in held}
    for alias, parameter in model.named_parameters(remove_duplicate=False):
        layer, record = innermost(found, alias), record_of[name_of[id(parameter)]]
        assert record == PINNED or (layer is not None and record in layer.records)


@given(module_trees())
def test_every_record_but_the_pinned_one_belongs_to_a_layer(model: nn.Module) -> None:
    found = split(model)
    used = {record for layer in found.layers for record in layer.records}
    assert used == set(found.records) - {PINNED}


@given(module_trees())
def test_parents_come_before_what_is_nested_in_them(model: nn.Module) -> None:
    found = split(model)
    order = names(found)
    pairs = [(order.index(x.parent), order.index(x.name)) for x in found.layers if x.parent]
    assert all(parent < child for parent, child in pairs)
