"""What a finished run is good for: export, generation, evaluation, report."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

from openwafer.diagnostics import OpenwaferError
from openwafer.training.metrics import load_run
from openwafer.training.metrics.report import write_report
from openwafer.training.models import CheckpointFolder
from openwafer.training.session import ExportFormat, RunConfig, Sampling, Session, TrainResult
from openwafer.training.session.config_sections import EvaluateConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import (
    GPT,
    TinyData,
    quiet,
    saved_arrays,
    saved_parameters,
    tiny_config,
)

GREEDY = Sampling(max_new_tokens=6, temperature=0.0)


@dataclass(frozen=True)
class Finished:
    """A run that ended, streamed from disk, with an average of its weights."""

    config: RunConfig
    session: Session
    result: TrainResult
    exported: Path

    @property
    def folder(self) -> Path:
        return self.result.folder


@pytest.fixture(scope="module")
def finished(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("finished")
    config = replace(
        tiny_config(data, folder, StoreTier.DISK),
        model=GPT,
        ema=0.5,
        evaluate=EvaluateConfig(every=2, batches=1),
        trace_steps=(1, 2),
    )
    session = Session(config, console=quiet())
    result = session.train()
    return Finished(config, session, result, session.export(folder / "exported"))


def test_exported_files_say_that_their_tensors_are_torch_s(finished: Finished) -> None:
    with safe_open(finished.exported / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def loaded(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def logits_of_export(folder: Path, prompt: str) -> torch.Tensor:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits: torch.Tensor = loaded(folder)(torch.tensor([tokenizer.encode(prompt)])).logits
    return logits


def test_the_export_is_a_model_of_the_transformers_library(finished: Finished) -> None:
    model = loaded(finished.exported)
    exported = model.state_dict()["model.layers.1.mlp.down_proj.weight"]
    assert type(model).__name__ == "LlamaForCausalLM"
    assert torch.equal(exported, saved_parameters(finished.result)["layers.1.mlp.down.weight"])


def test_the_exported_tokenizer_reads_as_the_run_did(finished: Finished) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(finished.exported)
    generation = json.loads((finished.exported / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer.encode("3 squared")) == "3 squared"


def test_generation_takes_the_tokens_that_the_export_finds_likeliest(finished: Finished) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(finished.exported)
    prompt = "3 squared"
    expected = tokenizer.encode(prompt)
    num_prompt = len(expected)
    model = loaded(finished.exported)
    for _ in range(GREEDY.max_new_tokens):
        with torch.no_grad():
            expected.append(int(model(torch.tensor([expected[-12:]])).logits[0, -1].argmax()))
    written = finished.session.generate(prompt, GREEDY)
    assert written == tokenizer.decode(expected[num_prompt:])


def test_a_generated_sample_can_be_kept_with_the_run(finished: Finished) -> None:
    written = finished.session.generate_all([""], GREEDY)
    finished.session.keep_sample("", written.texts[0], written.step)
    sample = load_run(finished.folder).sample
    assert sample is not None
    assert (sample.step, sample.prompt, sample.text) == (4, "", written.texts[0])


def test_the_export_is_cut_into_bounded_shards(finished: Finished, tmp_path: Path) -> None:
    folder = finished.session.export(tmp_path / "cut", ExportFormat(shard_bytes=8000))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 3
    prompt = "5 squared"
    assert torch.equal(
        logits_of_export(folder, prompt), logits_of_export(finished.exported, prompt)
    )


def test_the_export_may_be_in_half_the_bytes(finished: Finished, tmp_path: Path) -> None:
    folder = finished.session.export(tmp_path / "half", ExportFormat(torch.bfloat16))
    exported = load_file(folder / "model.safetensors")["model.norm.weight"]
    kept = saved_parameters(finished.result)["norm.weight"]
    assert torch.equal(exported, kept.bfloat16())


def test_the_export_may_be_the_average(finished: Finished, tmp_path: Path) -> None:
    folder = finished.session.export(tmp_path / "average", ExportFormat(uses_average=True))
    exported = load_file(folder / "model.safetensors")["model.norm.weight"]
    assert torch.equal(exported, saved_arrays(finished.result)["average/norm.weight"])


def test_an_export_from_a_checkpoint_is_that_of_the_store(
    finished: Finished, tmp_path: Path
) -> None:
    store = finished.folder / "store"
    store.rename(tmp_path / "away")
    try:
        folder = finished.session.export(tmp_path / "exported")
    finally:
        (tmp_path / "away").rename(store)
    name = "model.safetensors"
    assert (folder / name).read_bytes() == (finished.exported / name).read_bytes()


def test_a_damaged_checkpoint_is_not_exported(data: TinyData, tmp_path: Path) -> None:
    session = Session(replace(tiny_config(data, tmp_path), steps=1), console=quiet())
    checkpoint = session.train().checkpoint
    assert checkpoint is not None
    with (checkpoint / "weights-00001.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    with pytest.raises(OpenwaferError, match=r"weights-00001.* is damaged: .* checksum"):
        session.export(tmp_path / "exported")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_an_export_overwrites_nothing(finished: Finished) -> None:
    with pytest.raises(OpenwaferError, match=r"exported exists and is no empty folder"):
        finished.session.export(finished.exported)


def test_an_average_that_was_not_kept_cannot_be_exported(
    finished: Finished, tmp_path: Path
) -> None:
    other = Session(replace(finished.config, ema=None))
    with pytest.raises(OpenwaferError, match=r"keeps no average of its weights"):
        other.export(tmp_path / "x", ExportFormat(uses_average=True))


def test_evaluation_of_a_run_repeats_its_last_one(finished: Finished) -> None:
    points = load_run(finished.folder).validation
    assert points is not None
    assert [point.step for point in points.rows] == [1, 3]
    assert finished.session.evaluate() == points.rows[-1].loss


@pytest.mark.slow
def test_the_report_shows_every_part_of_the_run(finished: Finished) -> None:
    text = write_report(finished.folder).read_text()
    assert "No step was traced" not in text
    assert "No validation" not in text


def test_the_trace_has_the_disk_at_work(finished: Finished) -> None:
    trace = load_run(finished.folder).trace
    assert trace is not None
    tracks = {str(span.track) for span in trace.spans}
    assert tracks >= {"compute", "fetch", "update", "disk write"}
    assert {span.step for span in trace.spans} == {1, 2}


def test_the_log_says_what_the_run_did(finished: Finished) -> None:
    log = (finished.folder / "log.txt").read_text()
    assert "training from step 0 to 4" in log
    assert "ended at step 4" in log


def test_a_run_is_opened_by_its_folder_wherever_it_lies(finished: Finished) -> None:
    session = Session(finished.folder, ["checkpoint.keep=3"], console=quiet())
    assert session.folder.path == finished.folder
    assert session.config.checkpoint.keep == 3
    assert session.config.path == finished.folder


def test_a_folder_without_saved_steps_cannot_be_used(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text((finished.folder / "config.yaml").read_text())
    with pytest.raises(OpenwaferError, match=r"has saved nothing yet\n.*openwafer resume"):
        Session(tmp_path).evaluate()


@pytest.fixture(scope="module")
def saved_model(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> CheckpointFolder:
    """A model with its tokenizer, which has a chat template and two tokens that end a text."""
    folder = tmp_path_factory.mktemp("saved")
    tokenizer = transformers.AutoTokenizer.from_pretrained(data.tokenizer, pad_token="!")
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(vocab_size=280, num_attention_heads=2, **sizes)
    model: Any = transformers.LlamaForCausalLM(config)
    model.generation_config.eos_token_id = [7, tokenizer.eos_token_id]
    model.save_pretrained(folder)
    return CheckpointFolder(folder)


def test_the_export_of_a_saved_model_keeps_what_its_folder_says(
    data: TinyData, saved_model: CheckpointFolder, tmp_path: Path
) -> None:
    config = replace(tiny_config(data, tmp_path), model=saved_model, steps=1)
    session = Session(
        replace(config, data=replace(config.data, tokenizer=None, folder=None)), console=quiet()
    )
    session.train()
    folder = session.export(tmp_path / "exported")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.pad_token, tokenizer.chat_template) == ("!", "{{ messages }}")
    assert loaded(folder).generation_config.eos_token_id == [7, tokenizer.eos_token_id]


def test_a_tokenizer_larger_than_the_saved_model_is_refused(
    data: TinyData, saved_model: CheckpointFolder, tmp_path: Path
) -> None:
    config = json.loads((saved_model.path / "config.json").read_text())
    small = tmp_path / "small"
    small.mkdir()
    (small / "config.json").write_text(json.dumps({**config, "vocab_size": 270}))
    run = replace(tiny_config(data, tmp_path), model=CheckpointFolder(small))
    with pytest.raises(OpenwaferError, match=r"knows 270 token ids, the tokenizer 280\n.*leave"):
        Session(run, console=quiet()).train()
