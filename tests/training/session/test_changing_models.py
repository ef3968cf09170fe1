"""What a forward leaves behind: no concern of other systems, or refused by its name."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import TransformersModel, UserModule
from openwafer.training.session import Session
from tests.tables import case
from tests.training.session.follower_pool import FollowerPool
from tests.training.session.mixture_runs import MIXTRAL
from tests.training.session.test_systems import differing_from_loop, tied_config
from tests.training.session.tiny_runs import TinyData, quiet


def module(name: str) -> UserModule:
    return UserModule(f"tests.training.session.changing_models:{name}")


def mixtral(option: str) -> TransformersModel:
    return replace(MIXTRAL, config={**MIXTRAL.config, option: True})


@pytest.mark.parametrize(
    "model",
    [
        case(module("BuiltOnce"), by_default=False),
        module("LogsNorm"),
        case(mixtral("output_router_logits"), by_default=False),
        case(mixtral("output_hidden_states"), by_default=False),
    ],
    ids=["built once", "never read", "router logits", "hidden states"],
)
def test_what_no_other_forward_reads_equals_the_plain_loop(
    model: UserModule | TransformersModel, data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = replace(tied_config(data, tmp_path), model=model)
    assert differing_from_loop(pool.train(config, 2), config) == []


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("TakenFromFirst", "kept"),
        case("DrawnOnce", "kept", by_default=False),
        ("Counts", "count"),
        case("Remembers", "losses", by_default=False),
        ("PassesOn", "layers.0.mean"),
    ],
)
def test_what_another_forward_reads_is_refused_by_name(
    name: str, attribute: str, data: TinyData, tmp_path: Path
) -> None:
    config = replace(tied_config(data, tmp_path), model=module(name), systems=2)
    told = rf"\[systems-share-state\]: the model's forward changes '{attribute}', which another "
    with pytest.raises(OpenwaferError, match=told):
        Session(config, console=quiet()).plan()
