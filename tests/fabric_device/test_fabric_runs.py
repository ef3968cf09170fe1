"""Runs of a config whose device is the simulated wafer."""

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.data.tokenizer import load_tokenizer
from openwafer.training.metrics import load_run
from openwafer.training.metrics.fabric_report import PASSES
from openwafer.training.metrics.report import write_report
from openwafer.training.models import GptConfig
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.session import RunConfig, Sampling, Session, TrainResult
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    EvaluateConfig,
    Precision,
    ScheduleConfig,
    StreamingConfig,
)
from openwafer.training.stream.stream_options import FabricOptions
from tests.tables import case
from tests.training.kill.killed_runs import (
    Moment,
    final_arrays,
    first_steps,
    kill_at,
    run_to_the_end,
)
from tests.training.session.follower_pool import FollowerPool
from tests.training.session.tiny_model import TinyModel
from tests.training.session.tiny_runs import (
    TinyData,
    make_tiny_data,
    quiet,
    saved_arrays,
    saved_parameters,
    tiny_config,
    train_quietly,
)

FABRIC = FabricOptions(rows=2, columns=2, host=("embedding",))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TinyData:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


def config_of(data: TinyData, folder: Path, **changed: Any) -> RunConfig:
    config = tiny_config(data, folder)
    on_fabric: dict[str, Any] = {
        "steps": 2,
        "batch": BatchConfig(size=2, sequence_length=12),
        "streaming": StreamingConfig(device="fabric"),
        "fabric": FABRIC,
        "schedule": ScheduleConfig("constant", {"num_warm_up_steps": 1}),
    }
    return replace(config, **on_fabric | changed)


GPT = GptConfig(
    hidden_size=8,
    num_layers=2,
    num_heads=2,
    mlp_size=12,
    context_length=32,
    has_tied_embeddings=False,
)
WHOLE: dict[str, Any] = {"model": GPT, "fabric": replace(FABRIC, host=())}


MIXED: dict[str, Any] = {"precision": Precision.FP16}
MIXED_BOUND = 2**-9
"""Of a loss: a product of two factors, each rounded by 2**-11 at most, is off by twice as much."""


def on_cpu(config: RunConfig) -> RunConfig:
    cpu = StreamingConfig(device="cpu")
    return replace(config, streaming=cpu, fabric=FabricOptions(), precision=Precision.FP32)


def losses_of(config: RunConfig) -> list[float]:
    train_quietly(config)
    return [row.loss for row in load_run(config.folder / "tiny").metrics.rows]


def differing(found: TrainResult, expected: TrainResult, rel: float = 0.0) -> list[str]:
    pairs = saved_arrays(found), saved_arrays(expected)
    return [
        name
        for name, value in pairs[0].items()
        if not torch.allclose(value, pairs[1][name], rtol=rel, atol=rel / 10)
    ]


def test_a_run_on_the_fabric_has_the_weights_of_one_on_the_cpu(
    data: TinyData, tmp_path: Path
) -> None:
    batch = BatchConfig(size=4, sequence_length=12, micro_batches=2)
    sparse: dict[str, Any] = {"sparsity": 0.5, "batch": batch}
    config, told = config_of(data, tmp_path / "a", **sparse), StringIO()
    result = Session(config, console=Console(file=told, width=200)).train()
    expected = train_quietly(on_cpu(config_of(data, tmp_path / "b", **sparse)))
    assert result.loss == pytest.approx(expected.loss, rel=1e-4)
    assert differing(result, expected, 1e-2) == []
    assert re.search(r"head +gradient +4 ", told.getvalue())
    assert "computed on the host: embedding 4" in told.getvalue()
    kept = load_run(tmp_path / "a/tiny").fabric
    assert kept is not None
    assert kept.cycles_of("head", "delta") > 0
    assert "Cycles on the wafer" in write_report(tmp_path / "a/tiny").read_text()


def test_texts_and_scores_of_a_run_on_the_fabric_are_those_of_its_weights(
    data: TinyData, tmp_path: Path
) -> None:
    result = train_quietly(config_of(data, tmp_path, steps=1))
    session = Session(result.folder, console=quiet(), trusts_code=True)
    [text] = session.generate_all(["3 squared"], Sampling(4, temperature=0.0)).texts
    model, tokenizer = TinyModel().eval(), load_tokenizer(result.folder)
    model.load_state_dict(saved_parameters(result))
    tokens = before = tokenizer.encode("3 squared")
    for _ in range(4):
        logits = model(torch.tensor([tokens]))["logits"]
        tokens = [*tokens, int(logits[0, -1].argmax())]
    assert text == tokenizer.decode(tokens[-4:])
    assert session.score([(before, tokens[-4:])])[0].is_greedy


def test_texts_of_a_run_in_f16_are_written_in_f32(data: TinyData, tmp_path: Path) -> None:
    in_f16 = config_of(data, tmp_path, fabric=replace(FABRIC, precision="f16-f32"), **MIXED)
    assert in_f16.off_the_fabric == on_cpu(in_f16)


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{}, {"sparsity": 0.5}, WHOLE])
def test_a_run_that_goes_on_has_the_same_bits(
    data: TinyData, tmp_path: Path, changed: dict[str, Any]
) -> None:
    unbroken = train_quietly(config_of(data, tmp_path / "a", steps=4, **changed))
    config = config_of(data, tmp_path / "b", steps=4, **changed)
    train_quietly(replace(config, steps=2))
    run = Session(config.folder / "tiny", ["steps=4"], console=quiet(), trusts_code=True)
    result = run.resume()
    assert differing(result, unbroken) == []


@pytest.mark.slow
def test_a_run_killed_behind_a_checkpoint_goes_on_to_the_same_bits(
    data: TinyData, tmp_path: Path
) -> None:
    sizes = WHOLE | {"steps": 4, "checkpoint": CheckpointConfig(every=2)}
    killed, unbroken = (config_of(data, tmp_path / name, **sizes) for name in "ab")
    assert kill_at(killed, Moment(3, 0.0)) == 3
    run_to_the_end(killed)
    run_to_the_end(unbroken)
    assert first_steps(killed.path) == [0, 2]
    found, expected = final_arrays(killed), final_arrays(unbroken)
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


LARGE: dict[str, Any] = {
    "model": replace(GPT, hidden_size=64, num_heads=4, mlp_size=192),
    "fabric": FabricOptions(rows=16, columns=16),
    "batch": BatchConfig(size=4, sequence_length=32),
    "steps": 20,
}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [WHOLE, LARGE], ids=["4 PEs", "256 PEs"])
def test_a_transformer_has_the_losses_of_the_cpu(
    data: TinyData, tmp_path: Path, sizes: dict[str, Any]
) -> None:
    runs = [config_of(data, tmp_path / name, **sizes) for name in "ab"]
    assert losses_of(runs[0]) == pytest.approx(losses_of(on_cpu(runs[1])), rel=1e-4)
    kept = load_run(tmp_path / "a/tiny").fabric
    assert kept is not None
    assert set(kept.copies_off) == {"cross_entropy"}


@pytest.mark.slow
def test_products_of_f16_have_losses_within_their_bound(data: TinyData, tmp_path: Path) -> None:
    fabric = FabricOptions(rows=8, columns=4, precision="f16-f32")
    sizes = LARGE | MIXED | {"fabric": fabric, "batch": BatchConfig(size=2, sequence_length=16)}
    runs = [config_of(data, tmp_path / name, **sizes) for name in "ab"]
    found, expected = losses_of(runs[0]), losses_of(on_cpu(runs[1]))
    assert found == pytest.approx(expected, rel=MIXED_BOUND)
    assert found != expected


@pytest.mark.slow
def test_nine_tenths_of_zeros_take_as_many_cycles_less_as_predicted(
    data: TinyData, tmp_path: Path
) -> None:
    found = []
    for name, sparsity in (("dense", None), ("sparse", 0.9)):
        sizes = LARGE | {"fabric": FabricOptions(rows=4, columns=4), "steps": 1}
        sizes |= {"batch": BatchConfig(size=1, sequence_length=16), "sparsity": sparsity}
        train_quietly(config_of(data, tmp_path / name, **sizes))
        kept = load_run(tmp_path / name / "tiny").fabric
        assert kept is not None
        own = [one for one in kept.passes if "layers." in one.layer and one.name in PASSES]
        found.append([sum(one.cycles for one in own), sum(one.predicted_cycles for one in own)])
    (cycles, predicted), (of_sparse, predicted_of_sparse) = found
    assert cycles / of_sparse == pytest.approx(predicted / predicted_of_sparse, rel=0.1)
    assert cycles > 2 * of_sparse


# Both micro-batches have their activations on one wafer.
LONGER: dict[str, Any] = WHOLE | {"fabric": replace(FABRIC, host=(), rows=4)}


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{}, LONGER])
def test_two_wafers_as_two_systems_have_the_bits_of_one(
    data: TinyData, tmp_path: Path, changed: dict[str, Any]
) -> None:
    changed = changed | {"batch": BatchConfig(size=4, sequence_length=12, micro_batches=2)}
    one = train_quietly(config_of(data, tmp_path / "a", **changed))
    pool = FollowerPool(1)
    try:
        two = pool.train(config_of(data, tmp_path / "b", **changed), 2)
    finally:
        pool.close()
    assert differing(two, one) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"batch": BatchConfig(size=1, sequence_length=11)}, "11 tokens does not divide into 2"),
        (
            {"batch": BatchConfig(size=2, sequence_length=11), "evaluate": EvaluateConfig()},
            "a sample of 11 tokens does not divide into 2",
        ),
        ({"precision": Precision.BF16}, "precision is bf16 with .*; the fabric computes f32"),
        ({"streaming": StreamingConfig(device="cpu")}, "the device is cpu"),
        (
            {"streaming": StreamingConfig(device="fabric", mode=Mode.RESIDENT)},
            "mode is resident, and weights stream",
        ),
        (
            {"streaming": StreamingConfig(device="fabric", activations=Activations.OFFLOAD)},
            "activations are offloaded",
        ),
    ],
)
def test_keys_that_contradict_the_fabric_are_refused(
    data: TinyData, tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidFieldError, match=words):
        config_of(data, tmp_path, **changed)


# Of 65 held-out samples, micro-batches of 2 leave one.
ODD: dict[str, Any] = {
    "batch": BatchConfig(size=2, sequence_length=10),
    "fabric": FabricOptions(rows=4, columns=1),
    "evaluate": EvaluateConfig(batches=100),
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"fabric": replace(FABRIC, rows=3000)}, "3000 rows and 2 columns of PEs; wse3 has room"),
        case(
            {"fabric": FabricOptions(1, 1, host=("embedding",))},
            "48 tokens of 300 features take 57,600 bytes",
            by_default=False,
        ),
        (
            WHOLE | {"batch": BatchConfig(size=4, sequence_length=12, micro_batches=2)},
            "280 features of 24 tokens take 6,720 bytes of a PE(.|\n)*the loss asks for it",
        ),
        (
            WHOLE | ODD,
            "1 sample of 10 tokens, and others 2: attention of 10(.|\n)*; or give each PE",
        ),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_begins(
    data: TinyData, tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    batch = {"batch": BatchConfig(size=4, sequence_length=12)}
    with pytest.raises(OpenwaferError, match=words):
        train_quietly(config_of(data, tmp_path, **batch | changed))
    assert not (tmp_path / "tiny/metrics.jsonl").exists()
