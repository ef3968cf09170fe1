"""Keys that people bring from other trainers are refused with the key that says the same here."""

from dataclasses import fields
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session import RunConfig, load_config
from openwafer.training.session.config import FOREIGN_KEYS

RUN = "steps: 1\ndata: {source: {kind: standard-library}}\n"


def refusal(folder: Path, text: str) -> OpenwaferError:
    path = folder / "run.yaml"
    path.write_text(text)
    with pytest.raises(OpenwaferError) as found:
        load_config(path)
    return found.value


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("lr: 1e-3", "write optimizer: {learning_rate: ...}"),
        ("bf16: true", "write precision: bf16"),
        ("gradient_accumulation_steps: 4", "write batch: {micro_batches: ...}"),
        ("warmup_steps: 10", "write schedule: {options: {num_warm_up_steps: ...}}"),
        ("max_steps: 10", "write steps: ..."),
        ("resume_from_checkpoint: x", "`openwafer resume FOLDER`"),
        (
            "sparsity: {sparsity: 0.5, type: gmp}",
            "write algorithm: ..., one of static, gmp, set, rigl, imp",
        ),
    ],
)
def test_a_foreign_key_is_told_its_name_here(tmp_path: Path, line: str, remedy: str) -> None:
    [told] = refusal(tmp_path, f"{RUN}{line}\n").diagnostics
    assert (told.code, told.help) == ("config-unknown-key", remedy)


def test_a_value_out_of_range_is_told_beside_a_foreign_key(tmp_path: Path) -> None:
    text = RUN.replace("steps: 1", "steps: -1") + "lr: 1e-3\nnum_epochs: 2\n"
    told = [one.code for one in refusal(tmp_path, text).diagnostics]
    assert told == ["config-unknown-key", "config-unknown-key", "config-value"]


def test_what_is_written_instead_can_be_written(tmp_path: Path) -> None:
    text = (
        f"{RUN}optimizer: {{learning_rate: 1e-3, weight_decay: 0, options: {{eps: 1e-9}}}}\n"
        "schedule: {name: cosine, options: {num_warm_up_steps: 1}}\n"
        "batch: {micro_batch_size: 4}\ncheckpoint: {every: 2, keep: 1}\n"
        "evaluate: {every: 3, batches: 1}\nstreaming: {activations: recompute, device: cpu}\n"
    )
    (tmp_path / "run.yaml").write_text(text)
    assert load_config(tmp_path / "run.yaml").optimizer.learning_rate == 1e-3


def test_no_key_of_a_run_is_taken_for_a_foreign_one() -> None:
    assert not {field.name for field in fields(RunConfig)} & FOREIGN_KEYS.keys()
