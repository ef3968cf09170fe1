"""Loggers of other libraries get what a run's own lines have."""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.metrics import (
    METRICS_FORMAT,
    VALIDATION_FORMAT,
    StepMetrics,
    ValidationPoint,
    read_lines,
)
from openwafer.training.metrics.loggers import Logger, imported
from openwafer.training.session.config_sections import EvaluateConfig
from tests.training.session.tiny_runs import make_tiny_data, tiny_config, train_quietly

Curve = list[tuple[int, float]]
pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_logger_that_is_not_installed_is_told_with_what_installs_it() -> None:
    told = r"\[logger-not-installed\]: loggers: \[abacus\] is asked for, and abacus is not .*\n.*"
    with pytest.raises(OpenwaferError, match=f"{told}pip install abacus, or leave"):
        imported("abacus", "abacus", "loggers: [abacus]")


def of_tensorboard(folder: Path, name: str) -> Curve:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(one.step, one.value) for one in found.Scalars(name)]


def of_mlflow(_folder: Path, name: str) -> Curve:
    client = pytest.importorskip("mlflow").MlflowClient()
    [run] = client.search_runs(["0"])
    return [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]


def of_wandb(folder: Path, name: str) -> Curve:
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    [path] = folder.glob("wandb/offline-run-*/*.wandb")
    curve = Curve()
    for data in leveldb_records(path.read_bytes()[7:]):
        record = records.Record.FromString(data)
        given = {".".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
        curve += [(int(given["_step"]), float(given[name]))] if name in given else []
    return curve


def of_aim(folder: Path, name: str) -> Curve:
    """From the keys of its store; the library's own reader needs an index of a server."""
    database = pytest.importorskip("aimrocks")
    decode = pytest.importorskip("aim.storage.encoding").decode
    [path] = (folder / "aim" / ".aim" / "seqs" / "chunks").iterdir()
    items = database.DB(str(path), database.Options(), read_only=True).iteritems()
    items.seek_to_first()
    stored = list(items)

    def of(kind: bytes) -> dict[bytes, float]:
        mark = b"\xfe".join((name.encode(), kind, b"\xfe"))
        return {key.partition(mark)[2]: decode(value) for key, value in stored if mark in key}

    values = of(b"val")
    return sorted((int(step), values[index]) for index, step in of(b"step").items())


def leveldb_records(log: bytes) -> Iterator[bytes]:
    """Records of a log of LevelDB, whose blocks of 32 KiB begin 7 bytes before."""
    at, kept = 0, b""
    while at < len(log):
        if 32768 - (at + 7) % 32768 < 7:
            at += 32768 - (at + 7) % 32768
        _checksum, size, kind = struct.unpack_from("<IHB", log, at)
        kept += log[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield kept
            kept = b""


READERS: dict[Logger, Callable[[Path, str], Curve]] = {
    Logger.TENSORBOARD: of_tensorboard,
    Logger.MLFLOW: of_mlflow,
    Logger.WANDB: of_wandb,
    Logger.AIM: of_aim,
}
OFFLINE = {
    "WANDB_MODE": "offline",
    "MLFLOW_TRACKING_URI": "file:mlruns",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}


@pytest.mark.slow
@pytest.mark.parametrize("logger", READERS)
def test_a_logger_has_the_numbers_of_the_runs_own_lines(
    logger: Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(logger.value, reason=f"{logger} is not installed")
    monkeypatch.chdir(tmp_path)
    for variable, value in OFFLINE.items():
        monkeypatch.setenv(variable, value)
    config = tiny_config(make_tiny_data(tmp_path), tmp_path / "runs")
    asked = replace(config, loggers=(logger,), evaluate=EvaluateConfig(every=2, batches=1))
    folder = train_quietly(asked).folder
    rows: dict[str, Sequence[StepMetrics | ValidationPoint]] = {
        "train": read_lines(folder / "metrics.jsonl", METRICS_FORMAT).rows,
        "validation": read_lines(folder / "validation.jsonl", VALIDATION_FORMAT).rows,
    }
    for name, each in rows.items():
        found = READERS[logger](folder, f"{name}/loss")
        assert [step for step, _ in found] == [row.step for row in each]
        assert [loss for _, loss in found] == pytest.approx([row.loss for row in each])
