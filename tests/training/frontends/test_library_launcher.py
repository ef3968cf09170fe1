"""``openwafer python`` streams the weights of a Trainer, of which its script says nothing."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

TRANSFORMERS = """
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
sizes = dict(vocab_size=64, n_positions=16, n_embd=64, n_layer=4, n_head=2)
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
data = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(0, 64, (24, 8))]
given = dict(max_steps=3, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True)
trainer = Trainer(model, TrainingArguments("out", **given), train_dataset=data)
trainer.train()
"""

LIGHTNING = """
import sys

import torch
import PACKAGE as pl


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(6)))

    def training_step(self, batch, index):
        return self.model(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


pl.seed_everything(0)
model = Net()
loader = torch.utils.data.DataLoader(torch.randn(6, 128), batch_size=2)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer = pl.Trainer(accelerator="cpu", max_epochs=1, gradient_clip_val=0.5, **quiet)
trainer.fit(model, loader)
"""

SCRIPTS = {
    "accelerate": TRANSFORMERS,
    "lightning": LIGHTNING.replace("PACKAGE", "lightning"),
    "pytorch_lightning": LIGHTNING.replace("PACKAGE", "pytorch_lightning"),
}
END = """
torch.save({name: value.clone() for name, value in model.state_dict().items()}, sys.argv[1])
print(type(next(model.parameters())).__name__)
"""
PYTHON = (sys.executable, "-W", "ignore")
OPENWAFER = (*PYTHON, "-m", "openwafer", "python", "--device-memory", "1MiB")


def run_by(command: Sequence[str], script: Path) -> tuple[dict[str, torch.Tensor], str]:
    """What a script leaves, and of which kind its parameters are then."""
    saved = script.with_suffix(".pt")
    done = subprocess.run(
        [*command, script.name, saved.name],
        cwd=script.parent,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return torch.load(saved), done.stdout.split()[-1]


@pytest.mark.parametrize("library", SCRIPTS)
def test_a_script_streams_as_it_is_and_leaves_the_bits_of_a_plain_one(
    library: str, tmp_path: Path
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    script = tmp_path / "train.py"
    script.write_text(SCRIPTS[library] + END)
    (found, kind), (expected, plain_kind) = (run_by(one, script) for one in (OPENWAFER, PYTHON))
    assert (kind, plain_kind) == ("ReleasedParameter", "Parameter")
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
