"""The files in which a run tells about itself, and a run folder read back as one value."""

import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeVar

import yaml

from openwafer import __version__
from openwafer.config import PathLike, path_of
from openwafer.training.metrics.fabric_report import FabricReport
from openwafer.training.metrics.json_records import RunFile, corrupt, read_text
from openwafer.training.metrics.step_lines import (
    MASKS_FORMAT,
    METRICS_FORMAT,
    VALIDATION_FORMAT,
    MaskChange,
    StepLines,
    StepMetrics,
    ValidationPoint,
    read_lines,
)
from openwafer.training.metrics.step_trace import RunTrace, read_trace
from openwafer.training.metrics.units import format_bytes
from openwafer.training.plan_record import FORMAT, VERSION, PlanRecord

_PACKAGES = ("torch", "transformers", "numpy")


@dataclass(frozen=True)
class GeneratedSample:
    """A prompt and the model's continuation after `step` steps, the prompt not repeated."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class TokenIdentity:
    """Fingerprints, equal where two runs have them equal bit for bit.

    Attributes:
        tokenizer: fingerprint of the tokenizer and its end of text.
        data: fingerprint of all tokens, trained on and held out.
    """

    tokenizer: str
    data: str


@dataclass(frozen=True)
class Environment:
    """Facts about the machine and the releases, in the order of reading, for people."""

    facts: dict[str, str]


@dataclass(frozen=True)
class MaskPicture:
    """A mask from afar: `cells` of `rows` by `columns` elements, each the share that is kept.

    It is the mask after `step` training steps. No element of `empty_rows` and `empty_columns` is
    kept.
    """

    weight: str
    step: int
    rows: int
    columns: int
    kept: int
    empty_rows: int
    empty_columns: int
    cells: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class MaskPictures:
    """Pictures of the masks of one layer."""

    pictures: tuple[MaskPicture, ...] = ()


PLAN: Final = RunFile("plan.json", FORMAT, VERSION, PlanRecord)
SAMPLE: Final = RunFile("sample.json", "openwafer-sample", 1, GeneratedSample)
TOKENS: Final = RunFile("tokens.json", "openwafer-run-tokens", 1, TokenIdentity)
ENVIRONMENT: Final = RunFile("environment.json", "openwafer-environment", 1, Environment)
PICTURES: Final = RunFile("mask-pictures.json", "openwafer-mask-pictures", 1, MaskPictures)

FABRIC_REPORT: Final = RunFile("fabric.json", "openwafer-fabric-report", 1, FabricReport)


def describe_machine(device: str) -> Environment:
    """The environment of this process; `device` is the name of the training device.

    Where the working directory is in a git folder, its commit is part of it.
    """
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    facts = {
        "device": device,
        "processor": f"{name_processor()}, {len(os.sched_getaffinity(0))} cores",
        "host memory": format_bytes(memory_bytes),
        "system": platform.platform(),
        "openwafer": __version__,
        "python": platform.python_version(),
        **_package_versions(),
        **_commit_of(Path.cwd()),
    }
    return Environment(facts)


@cache
def _package_versions() -> Mapping[str, str]:
    return {package: version(package) for package in _PACKAGES}


def _commit_of(folder: Path) -> dict[str, str]:
    """The commit of a git folder, and whether tracked files differ from it; else nothing."""
    # No lock: the user may be committing.
    status = ("--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    try:
        asked = subprocess.run(
            ("git", "-C", str(folder), *status), capture_output=True, check=False
        )
    except FileNotFoundError:
        return {}
    # Names of files are bytes of any encoding.
    told = asked.stdout.decode(errors="replace").splitlines()
    heads = [line.removeprefix("# branch.oid ") for line in told if line.startswith("# branch.oid")]
    if asked.returncode != 0 or heads in ([], ["(initial)"]):
        return {}
    is_changed = any(not line.startswith("# ") for line in told)
    return {"commit": heads[0] + (", with changes that are in no commit" if is_changed else "")}


def name_processor() -> str:
    """What the processor calls itself."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


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
    fabric: FabricReport | None = None


def load_run(run_folder: PathLike) -> RunRecord:
    """Read a run folder.

    config.yaml, plan.json and metrics.jsonl must be there; validation.jsonl, trace.json,
    sample.json, environment.json, masks.jsonl, mask-pictures.json and fabric.json may be
    absent. Raises
    `OpenwaferError` (run-file-missing, run-file-version, run-file-corrupt) with the file and the
    key or line.
    """
    run_folder = path_of(run_folder, "run_folder")
    config_path = run_folder / "config.yaml"
    config_text = read_text(config_path)
    environment = ENVIRONMENT.read_if_present(run_folder)
    pictures = PICTURES.read_if_present(run_folder) or MaskPictures()
    return RunRecord(
        name=run_folder.resolve().name,
        config_text=config_text,
        config=_parse_config(config_text, config_path),
        plan=PLAN.read(run_folder),
        metrics=read_lines(run_folder / "metrics.jsonl", METRICS_FORMAT),
        validation=_read_if_present(
            run_folder / "validation.jsonl", lambda path: read_lines(path, VALIDATION_FORMAT)
        ),
        trace=_read_if_present(run_folder / "trace.json", read_trace),
        sample=SAMPLE.read_if_present(run_folder),
        environment=environment.facts if environment else None,
        masks=_read_if_present(
            run_folder / "masks.jsonl", lambda path: read_lines(path, MASKS_FORMAT)
        ),
        mask_pictures=pictures.pictures,
        fabric=FABRIC_REPORT.read_if_present(run_folder),
    )


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
