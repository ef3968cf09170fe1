"""What a PE has room for, and what a program knows of weights that are gone."""

import gc
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.fabric_device import Fabric, FabricOptions
from openwafer.fabric_device.report import Tally
from openwafer.sdk.kernels.precision import Precision, check_range
from openwafer.sdk.kernels.resident_plan import Pass, Weights, plan_resident, with_precision

PLAN = plan_resident((2, 2), 16, 12)


def weights() -> Weights:
    return Weights.of(np.ones((12, 8), np.float32), PLAN, has_bias=True)


def tally_of(*streamed: Weights) -> Tally:
    tally = Tally()
    for one in streamed:
        tally.add("0", Pass("forward", 100, weights=one), PLAN)
    return tally


def test_weights_whose_pattern_changed_are_let_go() -> None:
    first = weights()
    gone, tally = ref(first), tally_of(first, weights())
    del first
    gc.collect()
    assert gone() is None
    assert tally.outlook(PLAN, 1)[0].cycles == 2 * tally_of(weights()).outlook(PLAN, 1)[0].cycles


def test_tokens_for_which_a_pe_has_no_room_have_no_prediction() -> None:
    tally = tally_of(weights())
    own = {one.tokens for one in tally.outlook(PLAN, PLAN.num_panels) if one.rows == 2}
    assert own == {4, 8}
    most = {one.tokens for one in tally.outlook(PLAN, 1) if one.rows == 2}
    assert most == {4, 8, 16, 32, 64, 128}


def test_operands_of_f16_leave_twice_the_room_of_f32() -> None:
    mixed = with_precision(PLAN, "f16-f32")
    wider = replace(mixed, most_features=12 + 2 * 4)
    assert wider.buffer_bytes - mixed.buffer_bytes == 4 * (2 * mixed.tokens * 2 + 2 * 4)


def test_a_plan_warns_where_activations_as_torch_keeps_them_find_no_room() -> None:
    fabric = Fabric(FabricOptions(rows=2, columns=2, host=("aside",)), 16)
    room = plan_resident((2, 2), 16, 1).arena_bytes
    with pytest.warns(UserWarning, match=r"most of them 'mlp' .* 2 x 2 PEs have room for"):
        fabric.hold({"attention": room // 2, "mlp": room // 2 + 4})
    fabric.hold({"attention": room // 2, "mlp": room // 2, "aside": room})


def test_weights_beyond_f16_are_refused_by_their_name() -> None:
    values = np.array([1, -70000, 65504], np.float32)
    with pytest.raises(OpenwaferError, match="1 of the 3 values of a weight of 'head' are beyond"):
        check_range("a weight of 'head'", values, Precision.F16_F32)
    check_range("a weight of 'head'", values, Precision.F32)
    check_range("a weight of 'head'", np.array([np.inf, np.nan], np.float32), Precision.F16_F32)
