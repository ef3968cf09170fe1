"""openwafer batch-schedule, from a run that measured its noise to a config that trains."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.config import to_yaml
from openwafer.training.metrics import METRICS_FORMAT, StepWriter
from openwafer.training.noise_scale import Watched
from openwafer.training.session import RunConfig, load_config
from openwafer.training.session.config_sections import BatchConfig
from tests.cli.command import EXAMPLES, Done, run_command
from tests.training.metrics.synthetic_run import make_metrics

RISING = [10 * 1.004**step for step in range(600)]
BATCH = BatchConfig(size=8, sequence_length=64, micro_batch_size=4)


def run_of(folder: Path, scales: Sequence[float | None], *, noise: float | None = None) -> Path:
    """A run of 600 steps as far as the command reads it."""
    config = load_config(EXAMPLES / "small.yaml", ("steps=600",))
    config = replace(config, batch=BATCH, noise_scale=Watched.NORMS, folder=folder, name="run")
    config.path.mkdir()
    (config.path / "config.yaml").write_text(to_yaml(config))
    with StepWriter(config.path / "metrics.jsonl", METRICS_FORMAT) as writer:
        for step, scale in enumerate(scales):
            row = replace(make_metrics(step, 1), noise_scale=scale, gradient_noise=noise)
            writer.append(row)
    return config.path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("grown"), [None, *RISING[1:]])


@pytest.fixture(scope="module")
def proposed(run: Path) -> Done:
    return run_command("batch-schedule", run, "--least-steps", 50)


def config_with(run: Path, proposed: Done, folder: Path) -> RunConfig:
    """The run's config with what the command printed in place of its steps and batch."""
    kept = (run / "config.yaml").read_text()
    kept = re.sub(r"^steps: .*\n", "", kept, flags=re.MULTILINE)
    kept = re.sub(r"^batch:\n(  .*\n)*", "", kept, flags=re.MULTILINE)
    (folder / "next.yaml").write_text(proposed.out + kept)
    return load_config(folder / "next.yaml")


def test_what_is_printed_stands_in_a_config(run: Path, proposed: Done, tmp_path: Path) -> None:
    assert proposed.code == 0, proposed.err
    sizes = (config := config_with(run, proposed, tmp_path)).batch.sizes
    assert sizes.all == (8, 16, 32, 64)[: len(sizes.all)]
    assert len(sizes.all) > 2
    assert 0 <= 600 * 8 - sizes.before(config.steps) < sizes.all[-1]


def figure(done: Done, name: str) -> tuple[float, str]:
    """Value and origin of a line of the table."""
    pattern = rf"^{re.escape(name)} +(-?[\d,.]+)(?: samples)? +(\w+) "
    found = re.search(pattern, done.err, re.MULTILINE)
    assert found is not None, done.err
    return float(found[1].replace(",", "")), found[2]


def test_each_figure_says_where_it_comes_from(proposed: Done) -> None:
    assert figure(proposed, "noise scale, first")[1] == "measured"
    assert figure(proposed, "steps of the run's sizes")[0] == 600
    fewer, origin = figure(proposed, "fewer steps")
    assert origin == "inferred"
    assert fewer == 600 - figure(proposed, "steps of these sizes")[0] > 0
    assert figure(proposed, "extra tokens to the run's loss")[0] > 0
    assert "1812.06162, eq. 2.11" in proposed.err


def test_tokens_factor_and_bounds_are_kept(run: Path, tmp_path: Path) -> None:
    bounds = ("--smallest", 4, "--largest", 20, "--least-steps", 50)
    asked = ("--tokens", 6e5, "--factor", 0.5, *bounds)
    config = config_with(run, run_command("batch-schedule", run, *asked), tmp_path)
    assert config.batch.sizes.all == (4, 8, 16)
    assert 0 <= 600_000 // 64 - config.batch.sizes.before(config.steps) < 16


@pytest.mark.parametrize(
    ("scales", "noise", "message"),
    [
        ([None] * 600, None, "has not measured its noise scale"),
        ([None] * 600, 3.0, "the mean of the gradients never rose above their noise"),
        (RISING[:30], 3.0, "knows the noise scale of 30 steps, and a size is to hold for 100"),
        ([9.0] * 600, 3.0, "is at most 9 samples, its median over 100 steps never twice the size"),
    ],
)
def test_runs_that_tell_no_schedule_are_refused(
    tmp_path: Path, scales: Sequence[float | None], noise: float | None, message: str
) -> None:
    done = run_command("batch-schedule", run_of(tmp_path, scales, noise=noise))
    assert done.code == 2
    assert message in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--smallest", 6), "--smallest 6 is no multiple of the micro-batch of the run, which has"),
        (("--largest", 12), "--largest 12 is below twice the smallest size, which is 8"),
        (("--tokens", 6400), "the training has 100 samples, and 100 steps of 8 take 800"),
    ],
)
def test_options_that_cannot_be_kept_are_refused(
    run: Path, options: tuple[str, int], message: str
) -> None:
    done = run_command("batch-schedule", run, *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_a_noise_scale_above_all_sizes_gives_one_size_from_the_first_step(tmp_path: Path) -> None:
    run = run_of(tmp_path, [900.0] * 600)
    config = config_with(run, run_command("batch-schedule", run, "--largest", 32), tmp_path)
    assert config.batch == BatchConfig(32, 64, micro_batch_size=4)
