"""The commands."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import openwafer
from openwafer.cli.arguments import (
    ConfigFile,
    CyclesOf,
    NumSystems,
    Overrides,
    Run,
    SavedStep,
    TrustCode,
)
from openwafer.cli.cirh import cirh_app
from openwafer.cli.csl import conform, csl_app
from openwafer.cli.cszoo import cszoo_app
from openwafer.cli.environment import restart_with_defaults
from openwafer.cli.interrupted import TellingGroup
from openwafer.cli.official import official
from openwafer.cli.recipe import recipe_app
from openwafer.cli.scripts import OWN_ARGUMENTS, python
from openwafer.cli.trained import tell_result
from openwafer.cli.view import view
from openwafer.loss_laws import LawKind

app = typer.Typer(
    name="openwafer",
    cls=TellingGroup,
    help=openwafer.__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

WITHOUT_TORCH = ("claims", "conform", "csl", "fit", "view")
# The wings, by which the help groups commands.
TRAIN = "Train"
PLAN = "Plan ahead"
PROGRAM = "Program the wafer (with cslc and cs_python)"


class WeightFormat(StrEnum):
    """Number formats of exported weights."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class PruningMethod(StrEnum):
    """The method that decides which weights are kept."""

    MAGNITUDE = "magnitude"
    RANDOM = "random"
    WANDA = "wanda"
    SPARSEGPT = "sparsegpt"


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"openwafer {openwafer.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback acts on it
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    if context.invoked_subcommand not in WITHOUT_TORCH:
        restart_with_defaults()


@app.command(rich_help_panel=TRAIN)
def train(
    config: ConfigFile,
    overrides: Overrides = [],  # noqa: B006 - typer copies it
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Show the plan and train nothing.")
    ] = False,
    systems: NumSystems = None,
) -> None:
    """Train the model that a config describes."""
    if plan_only:
        plan(config, overrides, systems=systems)
        return
    from openwafer.cli.launching import is_restart, systems_of
    from openwafer.config import settings_of
    from openwafer.training.session import Session, load_config

    overrides = _with_systems(overrides, systems)
    read = load_config(config, tuple(overrides))
    with systems_of(read.path, read, overrides, settings_of(read)) as others:
        session = Session(config, overrides, systems=others)
        goes_on = is_restart() and session.folder.config.exists()
        result = session.resume() if goes_on else session.train()
    tell_result(session, result)


def _with_systems(overrides: list[str], systems: int | None) -> list[str]:
    return overrides if systems is None else [*overrides, f"systems={systems}"]


@app.command(rich_help_panel=TRAIN)
def plan(  # noqa: PLR0913 - a parameter is an option
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.yaml|RUN", help="A config, or the folder of a run.")
    ],
    overrides: Overrides = [],  # noqa: B006
    trust_code: TrustCode = False,
    system: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.yaml|this",
            help="Plan for wse1, cs2, cs3, h200, a100, a described system, or this machine.",
        ),
    ] = None,
    systems: NumSystems = None,
    json: Annotated[
        Path | None, typer.Option(help="Write the plan for a system into this file.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="The same as HTML with pictures.")] = None,
    link: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Bytes a second between systems like this, as 12.5GB."),
    ] = None,
    cycles_of: CyclesOf = None,
) -> None:
    """Show where everything lives, the peak of memory and the time of a step; train nothing."""
    from rich.console import Console

    from openwafer.training.methods.sparsity import remark_on_updates
    from openwafer.training.session import Session, show_plan
    from openwafer.training.session.matmul_precision import measured_remark
    from openwafer.training.session.plan_table import show_remarks, show_sizes

    _require_this(link, system)
    _require_elsewhere(cycles_of, system)
    if system is None:
        _require_no_file(json or page)
        session = Session(config, _with_systems(overrides, systems), trusts_code=trust_code)
        show_plan(session.plan(), Console())
        show_sizes(session.config.batch.sizes, Console())
        remarks = [
            remark_on_updates(session.config.sparse_groups, session.config.steps),
            measured_remark(session.config),
        ]
        show_remarks(remarks, Console())
        return
    from openwafer.cli.joined_systems import link_of
    from openwafer.cli.places import require_places
    from openwafer.cli.system_planning import Outputs, plan_elsewhere, plan_here

    require_places(json=json, page=page)
    outputs = Outputs(json, page)
    if system == "this":
        asked = _with_systems(overrides, systems)
        plan_here(Session(config, asked, trusts_code=trust_code), outputs, link_of(link))
        return
    session = Session(config, overrides, trusts_code=trust_code)
    number = systems or session.config.systems
    plan_elsewhere(session.config, system, number, outputs, cycles_of)


@app.command(rich_help_panel=TRAIN)
def resume(
    run: Run,
    overrides: Overrides = [],  # noqa: B006
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Go on from this checkpoint, or best; what is newer is set aside."),
    ] = None,
    trust_code: TrustCode = False,
    systems: NumSystems = None,
) -> None:
    """Go on with a run where it ended, bit for bit as if it had not."""
    from openwafer.cli.launching import config_on_this_host, systems_of
    from openwafer.training.session import Session

    overrides = _with_systems(overrides, systems)
    config = config_on_this_host(run, overrides, trusts_code=trust_code)
    settings = dict(each.partition("=")[::2] for each in overrides)
    with systems_of(run, config, overrides, settings) as others:
        session = Session(run, overrides, trusts_code=trust_code, systems=others)
        result = session.resume(checkpoint)
    tell_result(session, result)


@app.command(rich_help_panel=TRAIN)
def export(  # noqa: PLR0913 - a parameter is an option
    run: Run,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made; must not exist yet.")],
    dtype: Annotated[
        WeightFormat | None, typer.Option(help="Format of weights; by default the run's.")
    ] = None,
    shard_size: Annotated[str, typer.Option(help="Largest file.")] = "2GiB",
    average: Annotated[
        bool, typer.Option("--average", help="Write the moving average of the weights.")
    ] = False,
    hub: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Push it to this repository of a hub.")
    ] = None,
    checkpoint: SavedStep = None,
    trust_code: TrustCode = False,
) -> None:
    """Write the weights in the Hugging Face layout: safetensors, configs, tokenizer."""
    from openwafer.config import parse_bytes
    from openwafer.diagnostics import error
    from openwafer.training.session import ExportFormat, Precision, Session
    from openwafer.training.session.hub import push, require_name

    if hub is not None:
        require_name(hub)
    try:
        shard_bytes = parse_bytes(shard_size)
    except ValueError as cause:
        raise error("option-value", f"--shard-size: {cause}", help="such as 500MB") from cause
    weight_dtype = None if dtype is None else Precision(dtype).weight_dtype
    form = ExportFormat(weight_dtype, shard_bytes, average)
    written = Session(run, trusts_code=trust_code).export(folder, form, checkpoint)
    print(f"wrote {written}")
    if hub is not None:
        print(f"pushed {push(written, hub)}")


@app.command(rich_help_panel=TRAIN)
def sparsify(  # noqa: PLR0913 - a parameter is an option
    checkpoint: Annotated[
        Path,
        typer.Argument(metavar="CHECKPOINT", help="A run, or a model that save_pretrained wrote."),
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made; must not exist yet.")],
    sparsity: Annotated[
        float | None, typer.Option(help="Share of zeros in each weight, such as 0.75.")
    ] = None,
    method: Annotated[
        PruningMethod, typer.Option(help="What decides which weights are kept.")
    ] = PruningMethod.MAGNITUDE,
    structure: Annotated[
        str | None, typer.Option(help="2:4 keeps two of every four weights, 4x4 whole blocks.")
    ] = None,
    filters: Annotated[
        list[str],
        typer.Option("--filter", metavar="GLOB", help="Weights by name; repeatable."),
    ] = [],  # noqa: B006
    calibration: Annotated[
        list[str],
        typer.Option(metavar="TEXTS", help="What wanda and sparsegpt look at; repeatable."),
    ] = [],  # noqa: B006
    samples: Annotated[int, typer.Option(min=1, help="Most samples to look at.")] = 128,
    seed: Annotated[int, typer.Option(help="Of random masks.")] = 0,
    trust_code: TrustCode = False,
) -> None:
    """Set weights of a saved model to zero at once, and write it in the Hugging Face layout."""
    from openwafer.cli.pruning import prune_model
    from openwafer.config import InvalidFieldError
    from openwafer.diagnostics import error
    from openwafer.training.session import Calibration, Pruning
    from openwafer.training.session import PruningMethod as Method

    try:
        pruning = Pruning(sparsity, Method(method), structure, tuple(filters), seed)
    except InvalidFieldError as cause:
        remedy = cause.help or "see openwafer sparsify --help"
        raise error("option-value", f"--{cause}", help=remedy) from cause
    texts = Calibration(tuple(calibration), samples)
    prune_model(checkpoint, folder, pruning, texts, trusts_code=trust_code)


@app.command(rich_help_panel=TRAIN)
def report(
    run: Run,
    step: Annotated[
        int | None, typer.Option(help="The traced step to show; by default a late one.")
    ] = None,
) -> None:
    """Write the report of a run, one HTML file with pictures."""
    from openwafer.training.metrics.report import write_report

    print(f"wrote {write_report(run, step=step)}")


@app.command(rich_help_panel=TRAIN)
def evaluate(
    run: Run,
    batches: Annotated[
        int | None, typer.Option(min=1, help="How many batches of held-out documents.")
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    checkpoint: SavedStep = None,
    trust_code: TrustCode = False,
    measure: Annotated[
        str, typer.Option(metavar="NAME", help="Of a scalar that the model's forward returns.")
    ] = "loss",
) -> None:
    """Take the loss on held-out documents, or another measure that the model has."""
    from openwafer.training.session import Session

    session = Session(run, overrides, trusts_code=trust_code)
    print(f"validation {measure} {session.evaluate(batches, checkpoint, measure):.4f}")


@app.command(rich_help_panel=TRAIN)
def generate(  # noqa: PLR0913 - a parameter is an option
    run: Run,
    prompt: Annotated[
        list[str], typer.Option(help="What a text begins with; repeatable, for several texts.")
    ] = [""],  # noqa: B006
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens to write.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Choose among so many.")] = None,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share to choose from.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the first text with the run, for its report.")
    ] = False,
    checkpoint: SavedStep = None,
    trust_code: TrustCode = False,
    is_python: Annotated[
        bool, typer.Option("--python", help="Refuse tokens by which a text is no Python.")
    ] = False,
) -> None:
    """Write text with the model of a run."""
    from openwafer.cli.written import tell_reading
    from openwafer.config import InvalidFieldError
    from openwafer.diagnostics import error
    from openwafer.training.session import Sampling, Session
    from openwafer.training.session.constrained import can_become_python

    constraint = can_become_python if is_python else None
    try:
        sampling = Sampling(tokens, temperature, top_k, top_p, seed, constraint)
    except InvalidFieldError as cause:
        raise error("option-value", str(cause)) from cause
    _require_texts(prompt)
    session = Session(run, trusts_code=trust_code)
    written = session.generate_all(prompt, sampling, checkpoint)
    print("\n\n".join(map("".join, zip(prompt, written.texts, strict=True))))
    if reading := tell_reading(written, session.folder.path):
        print(reading, file=sys.stderr)
    if keep:
        session.keep_sample(prompt[0], written.texts[0], written.step)


@app.command(name="coord-check", rich_help_panel=PLAN)
def coord_check(  # noqa: PLR0913 - a parameter is an option
    config: ConfigFile,
    widths: Annotated[
        str | None,
        typer.Option(metavar="W,W,...", help="Values of the first width of the config's base."),
    ] = None,
    depths: Annotated[
        str | None,
        typer.Option(metavar="L,L,...", help="In place of widths: values of its number of layers."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each model.")] = 4,
    seeds: Annotated[int, typer.Option(min=1, help="Of weights and tokens; averaged.")] = 1,
    overrides: Overrides = [],  # noqa: B006
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw sizes against widths or depths into this file, .png or .svg."),
    ] = None,
) -> None:
    """Train a model at some widths or depths for a few steps, and tell whether activations grow."""
    from openwafer.cli.coordinates import check_sizes

    check_sizes(config, overrides, (widths, depths), (steps, seeds), picture)


@app.command(name="batch-schedule", rich_help_panel=PLAN)
def batch_schedule(  # noqa: PLR0913 - a parameter is an option
    run: Run,
    largest: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Samples of a step, at most.")
    ] = None,
    smallest: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Samples of the first steps; by default the run's."),
    ] = None,
    least_steps: Annotated[int, typer.Option(min=1, help="That a size holds for.")] = 100,
    tokens: Annotated[
        float | None, typer.Option(min=1, help="Of the training; by default the run's.")
    ] = None,
    factor: Annotated[
        float, typer.Option(min=1e-6, help="Multiplies the measured noise scale.")
    ] = 1.0,
    trust_code: TrustCode = False,
) -> None:
    """Propose batch sizes that grow with the noise scale that a run has measured."""
    from openwafer.cli.growing import Asked, propose_schedule

    asked = Asked(smallest, largest, least_steps, tokens, factor)
    propose_schedule(run, asked, trusts_code=trust_code)


@app.command(rich_help_panel=PLAN)
def place(  # noqa: PLR0913 - a parameter is an option
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.yaml|RUN", help="A config, or the folder of a run.")
    ],
    wafer: Annotated[
        str, typer.Option(metavar="NAME|FILE.yaml", help="wse1, wse2, wse3, or a described one.")
    ],
    replicas: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of the pipeline; by default as many as are fastest."),
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    trust_code: TrustCode = False,
    json: Annotated[Path | None, typer.Option(help="Write the floor plan into this file.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw it into this file, .svg or .png.")
    ] = None,
) -> None:
    """Give every layer a rectangle of a wafer's cores, so that a pipeline of them is fast."""
    from openwafer.cli.places import require_places
    from openwafer.cli.placing import Outputs, place_layers
    from openwafer.training.session import Session

    require_places(json=json, picture=picture)
    asked = Session(config, overrides, trusts_code=trust_code).config
    place_layers(asked, wafer, replicas, Outputs(json, picture))


@app.command(rich_help_panel=PLAN)
def sweep(  # noqa: PLR0913 - a parameter is an option
    config: ConfigFile,
    grid: Annotated[
        list[str],
        typer.Option(metavar="KEY=V,V,...", help="Values to try for a key; repeatable."),
    ],
    folder: Annotated[Path, typer.Option(help="Of the sweep; goes on with what is there.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each setting.")] = 1,
    overrides: Overrides = [],  # noqa: B006
    picture: Annotated[
        Path | None, typer.Option(help="Draw losses against keys into this file, .png or .svg.")
    ] = None,
    widths: Annotated[
        str | None,
        typer.Option(metavar="FIELD=W,...", help="Of the large model, by its config's fields."),
    ] = None,
    transfer: Annotated[
        Path | None, typer.Option(help="Write the large model's config under muP into this file.")
    ] = None,
) -> None:
    """Train small runs with all combinations of some values, and pick the best of them."""
    from openwafer.cli.places import require_places
    from openwafer.cli.sweeping import Asked, Outputs, sweep_config

    require_places(picture=picture, transfer=transfer)
    outputs = Outputs(folder, picture, widths, transfer)
    sweep_config(config, overrides, Asked(tuple(grid), seeds), outputs)


@app.command(rich_help_panel=PLAN)
def ablate(  # noqa: PLR0913 - a parameter is an option
    config: ConfigFile,
    folder: Annotated[Path, typer.Option(help="Of the runs; goes on with what is there.")],
    vary: Annotated[
        list[str],
        typer.Option(metavar="KEY=V,V,...", help="A variant for each value; repeatable."),
    ] = [],  # noqa: B006
    grid_file: Annotated[
        Path | None, typer.Option(help="Variants by name, of several keys each.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each variant.")] = 1,
    overrides: Overrides = [],  # noqa: B006
    law: Annotated[
        Path | None, typer.Option(help="Compare with this law: a file of openwafer fit --json.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the differences into this file, .png or .svg.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the results into this file.")] = None,
) -> None:
    """Train variants that each change one thing, and compare each with the config as it is."""
    from openwafer.cli.ablating import Asked, Outputs, ablate_config
    from openwafer.cli.places import require_places

    require_places(picture=picture, json=json)
    asked = Asked(tuple(vary), grid_file, seeds, law)
    ablate_config(config, overrides, asked, Outputs(folder, picture, json))


@app.command(rich_help_panel=TRAIN)
def demo(
    folder: Annotated[Path, typer.Option(help="Where the run goes.")] = Path("runs"),
    fabric: Annotated[bool, typer.Option("--fabric", help="Train on a simulated wafer.")] = False,
    overrides: Overrides = [],  # noqa: B006
) -> None:
    """Train a small transformer on Python's own library, streaming it through a small device."""
    from openwafer.cli.demo import run_demo
    from openwafer.cli.fabric_demo import run_fabric_demo

    (run_fabric_demo if fabric else run_demo)(folder, overrides)


@app.command(rich_help_panel=PLAN)
def fit(  # noqa: PLR0913 - a parameter is an option
    points: Annotated[
        list[Path],
        typer.Argument(metavar="RUNS...", help="Folders of runs, CSV or JSON files of models."),
    ],
    law: Annotated[
        LawKind, typer.Option(help="What the loss follows from, and how that is found.")
    ] = LawKind.COMPUTE,
    flops: Annotated[
        list[float], typer.Option(help="Tell the loss expected there; repeatable.")
    ] = [],  # noqa: B006
    budget: Annotated[
        list[float], typer.Option(help="Propose how to spend so many FLOPs; repeatable.")
    ] = [],  # noqa: B006
    batch: Annotated[
        float | None, typer.Option(help="Tokens a step; by default the critical batch.")
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="Propose how to spend so many hours of --system.")
    ] = None,
    money: Annotated[
        float | None, typer.Option(help="Propose how to spend so much on --system, at --price.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Of an hour of one system.")] = None,
    system: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE.yaml", help="wse1, cs2, cs3, h200, a100, or described."),
    ] = None,
    systems: Annotated[int, typer.Option(min=1, help="How many of them.")] = 1,
    hold_out: Annotated[
        list[str],
        typer.Option(metavar="GLOB", help="Points by name that are only compared; repeatable."),
    ] = [],  # noqa: B006
    leave_out_unfinished: Annotated[
        bool, typer.Option("--leave-out-unfinished", help="Leave out runs without a good end.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write the fit into this file.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw points and law into this file, .png or .svg.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the intervals.")] = 0,
    replicas: Annotated[int, typer.Option(min=20, help="Fits that intervals come from.")] = 200,
    trust_code: TrustCode = False,
) -> None:
    """Fit a scaling law to trained models, and tell what a budget would reach."""
    from openwafer.cli.budgets import Budget, SystemBudget, budgets_on_systems
    from openwafer.cli.fitting import Outputs, Question, Sources, fit_points
    from openwafer.cli.places import require_places
    from openwafer.planning.laws import Resampling

    require_places(json=json, picture=picture)
    sources = Sources(tuple(points), tuple(hold_out), leave_out_unfinished, trust_code)
    budgets = budgets_on_systems(SystemBudget(hours, money, price, system, systems))
    budgets = (*map(Budget, budget), *budgets)
    question = Question(law, Resampling(seed, replicas), tuple(flops), budgets, batch)
    fit_points(sources, question, Outputs(json, picture))


@app.command(rich_help_panel=PLAN)
def claims(
    json: Annotated[Path | None, typer.Option(help="Write them into this file.")] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(help="Draw speed-ups and a roofline into this folder, made if missing."),
    ] = None,
) -> None:
    """Tell what was published of wafers beside what follows from their figures."""
    from openwafer.cli.claims import tell_claims
    from openwafer.cli.places import require_places

    require_places(json=json)
    tell_claims(json, pictures)


def _require_no_file(path: Path | None) -> None:
    """Refuse the file of a plan for a system where none is named."""
    from openwafer.diagnostics import error

    if path is not None:
        raise error(
            "option-value",
            f"{path} is to have the plan for a system, and no --system is named",
            help="name one, as in --system cs2, or --system this",
        )


def _require_this(link: str | None, system: str | None) -> None:
    """Refuse a link between systems that have one of their own, or that are not planned for."""
    from openwafer.diagnostics import error

    if link is not None and system != "this":
        raise error(
            "option-value",
            f"--link {link} joins systems like this one, and "
            + ("no --system is named" if system is None else f"--system is {system}"),
            help="plan with --system this, or describe a system's network in a file",
        )


def _require_elsewhere(run: Path | None, system: str | None) -> None:
    """Refuse cycles of a wafer for a plan that is of none."""
    from openwafer.diagnostics import error

    if run is not None and system in (None, "this"):
        raise error(
            "option-value",
            f"--cycles-of {run} is of a wafer, and "
            + ("no --system is named" if system is None else "--system is this machine"),
            help="plan for a wafer, as with --system cs2",
        )


def _require_texts(prompts: list[str]) -> None:
    """Refuse what a shell has passed on that is no UTF-8: its bytes are halves of surrogates."""
    from openwafer.diagnostics import error

    for prompt in prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError as cause:
            raise error(
                "option-value",
                f"--prompt: character {cause.start} is the byte "
                f"0x{ord(prompt[cause.start]) & 0xFF:02x}, which is no UTF-8 here",
                help="give the text in UTF-8, as a terminal in a UTF-8 locale does",
            ) from cause


app.command(rich_help_panel=PROGRAM)(conform)
app.command(rich_help_panel=PROGRAM)(view)
app.command(rich_help_panel=TRAIN, context_settings=OWN_ARGUMENTS)(python)
app.command(rich_help_panel=TRAIN, context_settings=OWN_ARGUMENTS)(official)
app.add_typer(cirh_app, name="cirh", rich_help_panel=TRAIN)
app.add_typer(csl_app, name="csl", rich_help_panel=PROGRAM)
app.add_typer(cszoo_app, name="cszoo", rich_help_panel=TRAIN)
app.add_typer(recipe_app, name="recipe", rich_help_panel=TRAIN)
