"""sample.json of a run folder: text that the trained model wrote."""

import json
from dataclasses import dataclass
from pathlib import Path

from openwafer.atomic_file import write_text
from openwafer.config import PathLike, path_of
from openwafer.training.metrics.json_records import (
    check_format,
    parse_json,
    parse_record,
    read_text,
)

FORMAT = "openwafer-sample"
VERSION = 1


@dataclass(frozen=True)
class GeneratedSample:
    """A prompt and the model's continuation after `step` steps, the prompt not repeated."""

    step: int
    prompt: str
    text: str


def write_sample(run_folder: PathLike, sample: GeneratedSample) -> None:
    """Write sample.json, replacing an older one."""
    run_folder = path_of(run_folder, "run_folder")
    document = {"format": FORMAT, "version": VERSION, **vars(sample)}
    write_text(run_folder / "sample.json", json.dumps(document, ensure_ascii=False) + "\n")


def read_sample(path: Path) -> GeneratedSample:
    """Read sample.json; errors as in `read_plan`."""
    value = parse_json(read_text(path), str(path))
    check_format(value, FORMAT, VERSION, str(path))
    return parse_record(GeneratedSample, value, str(path))
