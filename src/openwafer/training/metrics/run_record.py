"""Reads a run folder back as one value, from which a report is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

from openwafer.config import PathLike, path_of
from openwafer.training.metrics.environment import read_environment
from openwafer.training.metrics.json_records import (
    check_format,
    corrupt,
    parse_json,
    parse_record,
    read_text,
)
from openwafer.training.metrics.mask_record import (
    MASKS_FORMAT,
    PICTURES_FILE,
    MaskChange,
    MaskPicture,
    read_pictures,
)
from openwafer.training.metrics.sample_record import GeneratedSample, read_sample
from openwafer.training.metrics.step_lines import StepLines, read_lines
from openwafer.training.metrics.step_metrics import (
    METRICS_FORMAT,
    VALIDATION_FORMAT,
    StepMetrics,
    ValidationPoint,
)
from openwafer.training.metrics.step_trace import RunTrace, read_trace
from openwafer.training.plan_record import FORMAT, VERSION, PlanRecord

Content = TypeVar("Content")


@dataclass(frozen=True)
class RunRecord:
    """Everything a run wrote about itself. What is None was not written."""

    name: str
    config_text: str
    config: Mapping[str, object]
    plan: PlanRecord
    metrics: StepLines[StepMetrics]
    validation: StepLines[ValidationPoint] | None
    trace: RunTrace | None
    sample: GeneratedSample | None
    environment: Mapping[str, str] | None
    masks: StepLines[MaskChange] | None = None
    mask_pictures: tuple[MaskPicture, ...] = ()


def load_run(run_folder: PathLike) -> RunRecord:
    """Read a run folder.

    config.yaml, plan.json and metrics.jsonl must be there; validation.jsonl, trace.json,
    sample.json, environment.json, masks.jsonl and mask-pictures.json may be absent. Raises
    `OpenwaferError` (run-file-missing, run-file-version, run-file-corrupt) with the file and the
    key or line.
    """
    run_folder = path_of(run_folder, "run_folder")
    config_path = run_folder / "config.yaml"
    config_text = read_text(config_path)
    return RunRecord(
        name=run_folder.resolve().name,
        config_text=config_text,
        config=_parse_config(config_text, config_path),
        plan=read_plan(run_folder / "plan.json"),
        metrics=read_lines(run_folder / "metrics.jsonl", METRICS_FORMAT),
        validation=_read_if_present(
            run_folder / "validation.jsonl", lambda path: read_lines(path, VALIDATION_FORMAT)
        ),
        trace=_read_if_present(run_folder / "trace.json", read_trace),
        sample=_read_if_present(run_folder / "sample.json", read_sample),
        environment=_read_if_present(run_folder / "environment.json", read_environment),
        masks=_read_if_present(
            run_folder / "masks.jsonl", lambda path: read_lines(path, MASKS_FORMAT)
        ),
        mask_pictures=_read_if_present(run_folder / PICTURES_FILE, read_pictures) or (),
    )


def read_plan(path: Path) -> PlanRecord:
    """Read plan.json.

    Raises `OpenwaferError`: run-file-missing, run-file-version, or run-file-corrupt with the key.
    """
    value = parse_json(read_text(path), str(path))
    check_format(value, FORMAT, VERSION, str(path))
    return parse_record(PlanRecord, value, str(path))


def _read_if_present(path: Path, read: Callable[[Path], Content]) -> Content | None:
    return read(path) if path.exists() else None


def _parse_config(text: str, path: Path) -> Mapping[str, object]:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as cause:
        raise corrupt(str(path), f"not YAML: {cause}") from cause
    if not isinstance(value, dict):
        raise corrupt(str(path), f"expected keys and values, found {type(value).__name__}")
    return value
