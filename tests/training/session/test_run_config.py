"""The YAML of a run: a short one is enough, and every mistake is told where it stands."""

from pathlib import Path

import pytest

from openwafer.config import parse, to_yaml
from openwafer.diagnostics import OpenwaferError
from openwafer.source import SourceText
from openwafer.training.data import SavedTokenizer
from openwafer.training.models import CheckpointFolder, GptConfig, TransformersModel
from openwafer.training.plan_record import Activations
from openwafer.training.session import RunConfig, load_config

SHORT = """\
steps: 1000
device_memory: 2GiB
model: {hidden_size: 512, num_layers: 8, num_heads: 8}
data:
  source: {kind: text, paths: [corpus]}
"""


def read(text: str, *overrides: str) -> RunConfig:
    return parse(SourceText("run.yaml", text), RunConfig, overrides)


def test_five_lines_are_a_config() -> None:
    config = read(SHORT)
    assert config.device_memory == 2 << 30
    assert isinstance(config.model, GptConfig)
    assert (config.clip_norm, config.batch.num_micro_batches) == (1.0, 1)


def test_a_resolved_config_reads_back_as_itself() -> None:
    config = read(
        SHORT,
        "optimizer.groups=[{match: ['*.bias'], learning_rate: 1e-5}]",
        "streaming.activations={layers.0: offload}",
        "precision=fp16",
    )
    assert read(to_yaml(config)) == config


IMP = "sparsity={sparsity: 0.75, algorithm: imp, update: {freq: 2}, rewind_step: 0}"


@pytest.mark.parametrize(
    ("overrides", "stores", "reason"),
    [
        (("systems=2",), "all", "store_systems is auto, and nothing wants one store"),
        (("systems=2", "store_systems=first"), "first", "store_systems is first"),
        (("systems=2", "streaming.mode=pipelined"), "first", "each system has the records of"),
        (("systems=2", IMP), "first", "rewind_step goes back in one store alone"),
        ((), "first", "there is one system"),
    ],
)
def test_several_systems_share_the_store_unless_something_wants_one(
    overrides: tuple[str, ...], stores: str, reason: str
) -> None:
    config = read(SHORT, *overrides)
    assert config.chosen_stores.systems == stores
    assert config.chosen_stores.reason.startswith(reason)
    assert config.shares_store == (stores == "all")


def test_a_run_is_named_after_its_file(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SHORT)
    assert load_config(tmp_path / "small.yaml").path == Path("runs/small")
    assert load_config(tmp_path / "small.yaml", ("name=x", "folder=y")).path == Path("y/x")


def test_a_saved_model_is_found_from_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(SHORT)
    config = load_config(tmp_path / "run.yaml", ("model={kind: checkpoint, path: saved}",))
    assert isinstance(config.model, CheckpointFolder)
    assert config.model.path == tmp_path / "saved"


def test_paths_may_begin_at_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "run.yaml").write_text(SHORT)
    config = load_config(
        tmp_path / "run.yaml",
        ("folder=~/runs", "data.folder=~/tokens", "data.tokenizer={path: ~/words}"),
    )
    assert config.path == Path("/home/me/runs/run")
    assert config.data.folder == Path("/home/me/tokens")
    assert config.data.tokenizer == SavedTokenizer(Path("/home/me/words"))


def test_kind_chooses_the_source_of_the_model() -> None:
    config = read(SHORT, "model={kind: transformers, architecture: llama}")
    assert isinstance(config.model, TransformersModel)


def test_activations_are_one_word_or_one_a_layer() -> None:
    assert read(SHORT, "streaming.activations=keep").streaming.activations is Activations.KEEP
    by_layer = read(SHORT, "streaming.activations={layers.0: offload}").streaming.activations
    assert by_layer == {"layers.0": Activations.OFFLOAD}


def test_micro_batches_come_by_number_or_by_size() -> None:
    assert read(SHORT, "batch.micro_batches=4").batch.num_micro_batches == 4
    assert read(SHORT, "batch.micro_batch_size=2").batch.num_micro_batches == 4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stpes=3", "no key 'stpes' here"),
        ("device_memory=2 gigs", "'2 gigs' is not a byte size"),
        ("steps=0", "steps: expected above 0, found 0"),
        ("steps=many", "expected a whole number, found the text 'many'"),
        ("clip_norm=-1", "clip_norm: expected above 0, found -1.0"),
        ("ema=1.5", "ema: expected between 0 and 1, found 1.5"),
        ("precision=fp64", "no such choice: the text 'fp64'"),
        ("weights=fp16", "no such choice: the text 'fp16'"),
        ("name=a/b", "name: 'a/b' is no name of a folder"),
        ("name=..", "name: '..' is no name of a folder"),
        (f"name={'n' * 300}", "name: expected at most 255 bytes, found 300"),
        ("seed=99999999999999999999", "seed: expected a number of 64 bits, found 9999999999999999"),
        ("streaming.link_per_second=0", "link_per_second: expected above 0, found 0"),
        ("streaming.prefetch_layers=-1", "prefetch_layers: expected at least 0, found -1"),
        ("model.path=saved", "'path' does not go together with 'hidden_size', 'num_layers',"),
        ("optimizer.name=adamm", "name: no optimizer is called 'adamm'"),
        ("optimizer.groups=[{learning_rate: 1}]", "missing here: match"),
        ("schedule.name=cosin", "schedule: no learning-rate schedule is called 'cosin'"),
        ("schedule.options={warm: 3}", "schedule: schedule cosine has no option 'warm'"),
        (
            "schedule.options={num_warm_up_steps: 5000}",
            "schedule: Cosine(num_steps=1000,",
        ),
        ("batch.micro_batches=3", "micro_batches: 3 does not divide the batch size 8"),
        ("batch={micro_batches: 2, micro_batch_size: 4}", "4 stands beside micro_batches: 2"),
        ("batch.sequence_length=4096", "sequence_length 4096 exceeds model.context_length 1024"),
        ("data.validation_share=2", "validation_share: expected at least 0 and below 1, found 2.0"),
        ("data.source.kind=csv", "no such choice: the text 'csv'"),
        ("streaming.store=flash", "no such choice: the text 'flash'"),
        ("checkpoint.keep=0", "keep: expected above 0, found 0"),
        ("evaluate.every=0", "every: expected above 0, found 0"),
        ("loss_scale.growth_factor=1", "growth_factor: expected above 1, found 1.0"),
        ("model.num_heads=7", "7 heads do not divide hidden_size 512"),
    ],
)
def test_every_mistake_is_told(override: str, message: str) -> None:
    with pytest.raises(OpenwaferError) as found:
        read(SHORT, override)
    assert message in str(found.value)


def test_all_mistakes_are_told_at_once_with_their_places() -> None:
    wrong = "steps: -1\n" + SHORT.replace("steps: 1000\n", "").replace("kind", "knd")
    with pytest.raises(OpenwaferError) as found:
        read(wrong)
    assert [d.code for d in found.value.diagnostics] == ["config-unknown-key", "config-missing-key"]
    assert "run.yaml:5:12" in str(found.value)


def test_bf16_weights_do_not_go_with_fp16_autocast() -> None:
    with pytest.raises(OpenwaferError, match=r"beside precision: fp16.*\n(.*\n)*.*fp32 or bf16"):
        read(SHORT, "weights=bf16", "precision=fp16")


def test_help_names_the_batch_counts_that_divide() -> None:
    with pytest.raises(OpenwaferError, match=r"choose one of 1, 2, 4, 8"):
        read(SHORT, "batch.micro_batch_size=5")
