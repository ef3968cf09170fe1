"""``openwafer recipe``: configs on real data, with the loss that they reach."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openwafer.cli.arguments import Overrides
from openwafer.cli.places import free_name
from openwafer.cli.trained import tell_result

if TYPE_CHECKING:
    from openwafer.recipes import Recipe
    from openwafer.training.session import RunConfig, Session
    from openwafer.training.session.config_sections import TokensConfig

recipe_app = typer.Typer(
    help="Train recipes: configs on real data, with the loss that they reach.",
    no_args_is_help=True,
)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="As openwafer recipe list has it.")]
# What a run may be told without being another run.
SAME_RUN = ("name", "folder", "seed", "log_every", "loggers")
NUM_TOKENS = 40
"""Of the text at the end."""


@recipe_app.command("list")
def list_recipes() -> None:
    """List the recipes, with their losses and what they take on two cores."""
    from rich.table import Table

    from openwafer.cli.tables import plain_console
    from openwafer.recipes import all_recipes

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("recipe", "what", "loss", "time", "memory"):
        table.add_column(title, justify="left" if title in ("recipe", "what") else "right")
    for recipe in all_recipes():
        known = recipe.known
        loss = f"{known.figure.loss:.2f} +- {known.figure.spread:.2f}"
        memory = f"{known.memory / 1e6:.0f} MB"
        table.add_row(recipe.name, known.title, loss, f"{known.seconds:.0f} s", memory)
    plain_console().print(table)


@recipe_app.command()
def show(name: _Name) -> None:
    """Show a recipe's page and its config."""
    from openwafer.recipes import find_recipe

    recipe = find_recipe(name)
    print(f"{recipe.page}\n# {recipe.config}\n{recipe.config.read_text('utf-8')}", end="")


@recipe_app.command()
def run(
    name: _Name,
    overrides: Overrides = [],  # noqa: B006 - typer copies it
) -> None:
    """Make a recipe's data, train it, and compare its loss on held-out documents."""
    from openwafer.recipes import find_recipe

    run_recipe(find_recipe(name), overrides)


def run_recipe(recipe: "Recipe", overrides: Sequence[str]) -> None:
    """Train a recipe in a new folder of its name, and tell its loss beside the stated one.

    Smaller runs that the recipe has come first; a law is fitted to them, and told beside its own.
    """
    from openwafer.training.session import load_config

    folder = make_data(recipe, overrides).folder
    settings = (f"name={free_name(folder, recipe.name)}", *overrides)
    name = load_config(recipe.config, settings).name
    smaller = []
    for number, changes in enumerate(recipe.known.smaller, start=1):
        # An attempt that was interrupted leaves its own behind.
        own = free_name(folder, f"{name}-smaller-{number}")
        smaller.append(_train(recipe, [*changes, *overrides, f"name={own}"]).folder.path)
    session = _train(recipe, settings)
    _tell_figures(recipe, session, _is_as_stated(overrides))
    if smaller:
        _tell_law(smaller, session.folder.path)
    if recipe.known.prompt is not None:
        _write_text(session, recipe.known.prompt)


def _train(recipe: "Recipe", settings: Sequence[str]) -> "Session":
    from openwafer.training.models import UserModule
    from openwafer.training.session import Session

    session = Session(recipe.config, settings)
    # A module of a recipe that names no prompt, such as an encoder, has no text to write.
    can_write = recipe.known.prompt is not None or not isinstance(session.config.model, UserModule)
    tell_result(session, session.train(), can_write=can_write)
    return session


def _tell_law(smaller: Sequence[Path], own: Path) -> None:
    """Fit the law of compute to the smaller runs, and tell how far off it is for the recipe's."""
    from openwafer.cli.fitting import Outputs, Question, Sources, fit_points
    from openwafer.loss_laws import LawKind
    from openwafer.planning.laws import Resampling

    sources = Sources((*smaller, own), held_out=(own.name,), trusts_code=True)
    fit_points(sources, Question(LawKind.COMPUTE, Resampling(), (), (), None), Outputs(None, None))


def make_data(recipe: "Recipe", overrides: Sequence[str]) -> "RunConfig":
    """Take the data step of a recipe where its run reads what that makes; returns the config."""
    from openwafer.training.session import load_config

    config = load_config(recipe.config, tuple(overrides))
    recipe.make_data(_paths_read(config.data))
    return config


def _paths_read(data: "TokensConfig") -> Iterator[str]:
    from openwafer.training.data import SavedTokenizer
    from openwafer.training.data.mix import parts_of

    for part in parts_of(data.source):
        yield from part.paths
    if isinstance(data.tokenizer, SavedTokenizer):
        yield str(data.tokenizer.path)


def _is_as_stated(overrides: Sequence[str]) -> bool:
    return all(each.partition("=")[0] in SAME_RUN for each in overrides)


def _tell_figures(recipe: "Recipe", session: "Session", is_as_stated: bool) -> None:
    """What a run reached beside the recipe's figures; if that is not the same, it is a warning."""
    from openwafer.training.metrics import load_run

    validation = load_run(session.folder.path).validation
    if validation is None:
        print(f"no loss on held-out documents was taken; see evaluate in {recipe.config}")
        return
    figure, measure = recipe.known.figure, recipe.known.measure
    title = "loss on held-out documents"
    found = validation.rows[-1].loss
    _tell_figure(recipe.name, title, found, figure.loss, figure.spread, is_as_stated)
    if measure is not None:
        title = f"{measure.title} (by chance {measure.chance:g})"
        found = session.evaluate(measure=measure.name)
        _tell_figure(recipe.name, title, found, measure.mean, measure.spread, is_as_stated)


def _tell_figure(
    name: str, title: str, found: float, mean: float, spread: float, is_as_stated: bool
) -> None:
    from openwafer.diagnostics import Diagnostic, Severity, tell

    stated = f"{mean:.2f} +- {spread:.2f}"
    whose = "the recipe's" if is_as_stated else "with other settings than the recipe's, which has"
    print(f"{title} {found:.4f}; {whose} {stated}")
    if is_as_stated and abs(found - mean) > spread:
        message = f"{title} {found:.4f}, and {name} was measured with {stated}"
        help = "the sources of another Python, or other packages, are other data"
        tell([Diagnostic(Severity.WARNING, "recipe-figure", message, help=help)])


def _write_text(session: "Session", prompt: str) -> None:
    from openwafer.cli.written import tell_reading
    from openwafer.training.session import Sampling

    written = session.generate_all([prompt], Sampling(NUM_TOKENS, temperature=0.4, top_k=20))
    session.keep_sample(prompt, written.texts[0], written.step)
    print(f"what it writes:\n{prompt}{written.texts[0]}")
    if reading := tell_reading(written, session.folder.path):
        print(reading)
