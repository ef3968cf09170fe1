"""Lightning's Trainer with a strategy that streams leaves the bits of one without."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("lightning", reason="Lightning is not installed")

from lightning import pytorch as lightning
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.lightning import StreamedStrategy
from openwafer.training.plan_record import Mode
from tests.training.frontends.trainers import STREAM, build_gpt2, texts

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Gpt(lightning.LightningModule):  # type: ignore[misc]
    """A user's module around a model."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.model = build_gpt2(**config)

    def training_step(self, batch: Any, _index: int) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        self.log("loss", loss, prog_bar=True)
        self.log("scale", self.global_step + 1.0)
        return loss

    def validation_step(self, batch: Any, _index: int) -> None:
        self.log("val_loss", self.model(**batch).loss)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


class Parts(Gpt):
    """A user's module that is a model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Identity()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(64, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        logits: Tensor = self.head(x)
        return logits

    def training_step(self, batch: Any, _index: int) -> Tensor:
        logits = self(batch["input_ids"])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.training_step(batch, index))


def loader() -> Any:
    return torch.utils.data.DataLoader[Any](texts()[:16], batch_size=2)  # type: ignore[arg-type]


def fitted(module: Any, folder: Path, *, streams: bool, resumed: Path | None = None) -> Any:
    """A trainer that has fitted the module: accumulation, clipping, validation, checkpoints."""
    lightning.seed_everything(0)
    save = ModelCheckpoint(folder, save_top_k=-1, every_n_train_steps=2, filename="{step}")
    trainer = lightning.Trainer(
        accelerator="cpu",
        **({"strategy": StreamedStrategy(**STREAM)} if streams else {}),
        max_steps=6,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        val_check_interval=4,
        callbacks=[save, EarlyStopping("val_loss", patience=9)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader(), loader(), ckpt_path=resumed)
    return trainer


def left_by(trainer: Any) -> dict[str, Tensor]:
    module = trainer.lightning_module
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    [optimizer] = trainer.optimizers
    for index, entries in optimizer.state_dict()["state"].items():
        weights |= {f"{index}.{key}": value.clone() for key, value in entries.items()}
    told = {name: torch.as_tensor(value) for name, value in trainer.callback_metrics.items()}
    return weights | told


def apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    assert found.keys() == expected.keys()
    return [name for name in expected if not torch.equal(found[name], expected[name])]


@pytest.mark.parametrize("kind", [Gpt, Parts])
def test_a_streamed_fit_leaves_the_bits_of_a_plain_one(kind: Any, tmp_path: Path) -> None:
    trainer = fitted(kind(), tmp_path / "a", streams=True)
    assert trainer.strategy.streamed.plan.mode is Mode.STREAMED
    plain = fitted(kind(), tmp_path / "b", streams=False)
    assert apart(left_by(trainer), left_by(plain)) == []


# Lightning keeps no state of the generators of random numbers.
WITHOUT_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def test_a_fit_goes_on_from_a_checkpoint_exactly(tmp_path: Path) -> None:
    expected = left_by(fitted(Gpt(**WITHOUT_DROPOUT), tmp_path / "b", streams=False))
    fitted(Gpt(**WITHOUT_DROPOUT), tmp_path / "a", streams=True)
    [saved] = (tmp_path / "a").glob("*step=4*.ckpt")
    rest = fitted(Gpt(**WITHOUT_DROPOUT), tmp_path / "c", streams=True, resumed=saved)
    assert apart(left_by(rest), expected) == []


def test_what_was_fitted_is_validated_and_fitted_again(tmp_path: Path) -> None:
    trainers = [fitted(Gpt(), tmp_path / str(s), streams=s) for s in (True, False)]
    found, expected = (trainer.validate(trainer.lightning_module, loader()) for trainer in trainers)
    assert found == expected
    for trainer in trainers:
        lightning.seed_everything(0)
        trainer.fit_loop.epoch_loop.max_steps = 8
        trainer.fit(trainer.lightning_module, loader(), loader())
    assert apart(*map(left_by, trainers)) == []


def test_a_part_that_is_not_there_is_told() -> None:
    trainer = lightning.Trainer(
        accelerator="cpu", strategy=StreamedStrategy(**STREAM, module="net"), logger=False
    )
    with pytest.raises(OpenwaferError, match="has no such part, and has model"):
        trainer.fit(Gpt(), loader())
