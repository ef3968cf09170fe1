"""Whatever is written: a group that trains every parameter it takes, or an error with its place."""

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from openwafer import config
from openwafer.diagnostics import OpenwaferError
from openwafer.source import SourceText
from openwafer.training.sparsity.options import resolve, sparsity_groups
from tests.examples import examples
from tests.training.sparsity.test_sparsity_options import SHAPES, TABLES, Run

NUM_STEPS = 60

numbers = st.sampled_from([-1, 0, 0.1, 0.5, 0.9, 1, 2.5, 1e300, 1e-300, float("inf"), float("nan")])
steps = st.sampled_from([-5, 0, 1, 7, 20, 10**20])
keys = ("value", "init", "slope", "gamma", "final", "beta", "half_period", "minimum", "power")
types = st.sampled_from(["constant", "linear", "exp", "power", "cosine", "cycling", "polynomial"])
schedules = st.builds(
    lambda name, held, end: {"type": name, **held, **end},
    types,
    st.dictionaries(st.sampled_from(keys), numbers, max_size=4),
    st.dictionaries(st.sampled_from(["start", "end"]), steps),
)
written_numbers = numbers | schedules | st.lists(numbers, max_size=3)
updates = st.dictionaries(st.sampled_from(["freq", "start", "stop"]), steps) | st.builds(
    lambda listed: {"steps": listed}, st.lists(steps, max_size=3)
)
names = st.sampled_from(["*.mlp.*", "mlp", "*", "(", "[", "no", "head.*", "up.weight"])
groups = st.fixed_dictionaries(
    {},
    optional={
        "sparsity": written_numbers,
        "algorithm": st.sampled_from(["static", "gmp", "set", "rigl", "imp"]),
        "init_method": st.sampled_from(["random", "topk", "checkerboard"]),
        "param_filter": names | st.lists(names, max_size=2),
        "param_name_patterns": names | st.lists(names, max_size=2),
        "structure": st.sampled_from(["2:4", "4x4", "1:3", "0:2", "4:2", "x", "2x3x4"]),
        "update": updates,
        "drop_fraction": written_numbers,
        "prune_fraction": numbers,
        "rewind_step": steps,
    },
)
# Few random groups are right in every key, so half are drawn from keys that suit each other.
likely = st.fixed_dictionaries(
    {
        "sparsity": st.sampled_from(
            [0.5, [0.9, 0.5], {"type": "polynomial", "final": 0.9, "end": 40}]
        ),
        "algorithm": st.sampled_from(["gmp", "set", "rigl", "imp"]),
        "update": st.sampled_from([{"freq": 7}, {"steps": [3, 50]}, {"freq": 10, "stop": 30}]),
    },
    optional={"structure": st.sampled_from(["1:2", "4x4"]), "param_filter": names},
)


@examples(400)
@given(groups | likely | st.lists(groups | likely, max_size=3) | numbers)
def test_what_is_written_can_be_trained_or_is_refused(written: Any) -> None:
    text = yaml.safe_dump({"sparsity": written})
    try:
        read = sparsity_groups(config.parse(SourceText("run.yaml", text), Run).sparsity)
        found = resolve(read, SHAPES, TABLES, NUM_STEPS, 1)
    except (OpenwaferError, config.InvalidFieldError):
        return
    assert found
    for name, parameter in found.items():
        kept = [number for _, number in parameter.algorithm.target.changes(SHAPES[name], NUM_STEPS)]
        assert 0 < min(kept) <= max(kept) == parameter.capacity
