"""What a recipe is and where it is found; docs/formats/openwafer-recipe.md describes its file."""

import importlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from openwafer.config import Bytes, InvalidFieldError, load
from openwafer.diagnostics import did_you_mean, error

FORMAT: Final = "openwafer-recipe"
VERSION: Final = 1
RECIPE_FILE: Final = "recipe.yaml"
CONFIG_FILE: Final = "config.yaml"
PAGE_FILE: Final = "README.md"
DATA_STEP: Final = "data.py"
DATA_FOLDER: Final = Path("runs/recipe-data")
"""What data steps make is below it, as their configs say; it counts from the working directory."""


@dataclass(frozen=True)
class Figure:
    """The loss on held-out documents behind the last step.

    Attributes:
        loss: the mean over seeds 0, 1 and 2.
        spread: three times their standard deviation, rounded up to a hundredth.
    """

    loss: float
    spread: float


@dataclass(frozen=True)
class Measure:
    """What else of the held-out documents tells how much was learned.

    Attributes:
        name: of the scalar that the model's forward returns.
        title: what is measured, for people.
        mean, spread: as of a loss.
        chance: what a model has that has learned nothing.
    """

    name: str
    title: str
    mean: float
    spread: float
    chance: float


@dataclass(frozen=True)
class RecipeFile:
    """The content of a recipe's file; a field is a key of it.

    Attributes:
        title: what is trained on what, in a line.
        data: what is read, and under which licence.
        figure: see :class:`Figure`.
        seconds: that it took on two cores.
        memory: most of the host's memory that it took.
        needs: packages that its data step reads and that openwafer itself does without.
        prompt: what a text begins with that is written at the end; ``None`` writes none.
        measure: see :class:`Measure`; ``None`` where the loss alone is taken.
        smaller: settings of runs that come first, for each run its own; a law of compute is fitted
            to these, and compared with the recipe's own.
    """

    format: Literal["openwafer-recipe"]
    version: int
    title: str
    data: str
    figure: Figure
    seconds: float
    memory: Bytes
    needs: tuple[str, ...] = ()
    prompt: str | None = None
    measure: Measure | None = None
    smaller: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise InvalidFieldError(
                "version",
                f"{self.version}; this program reads {FORMAT} {VERSION}",
                help=f"write it as docs/formats/{FORMAT}.md has it",
            )


@dataclass(frozen=True)
class Recipe:
    """A config on real data.

    Attributes:
        folder: its files are in; the folder's name is the recipe's.
        known: what is known of it.
    """

    folder: Path
    known: RecipeFile

    @property
    def name(self) -> str:
        """That of its folder."""
        return self.folder.name

    @property
    def config(self) -> Path:
        """The config of its run."""
        return self.folder / CONFIG_FILE

    @property
    def page(self) -> str:
        """What is to be said about it, in Markdown."""
        return (self.folder / PAGE_FILE).read_text("utf-8")

    @property
    def data_folder(self) -> Path:
        """Where its data step writes."""
        return DATA_FOLDER / self.name

    def make_data(self, paths: Iterable[str]) -> None:
        """Take the data step, if a run reads what it makes and that is not there yet.

        Args:
            paths: that the run reads.

        Raises:
            OpenwaferError: ``recipe-needs``.
        """
        has_step = (self.folder / DATA_STEP).is_file()
        made = self.data_folder.absolute()
        is_read = any(made in Path(path).absolute().parents for path in paths)
        if not (has_step and is_read) or self.data_folder.is_dir():
            return
        self.require_packages()
        step = importlib.import_module(f"openwafer.recipes.{self.name}.data")
        # A step that is broken off leaves nothing that the next run takes for its data.
        unfinished = self.data_folder.with_name(f".{self.name}.{os.getpid()}")
        try:
            unfinished.mkdir(parents=True)
            step.make(unfinished)
            unfinished.rename(self.data_folder)
        except OSError:
            # Another process may have made the same meanwhile.
            if not self.data_folder.is_dir():
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def require_packages(self) -> None:
        """Raise ``recipe-needs`` for a package of its texts that is not there."""
        for package in self.known.needs:
            if find_spec(package) is None:
                raise error(
                    "recipe-needs",
                    f"the recipe {self.name} is trained on texts of the package {package}, which "
                    "is not installed",
                    help="pip install 'openwafer[recipes]', or train on texts of your own: "
                    "--set data.source=...",
                )


def all_recipes() -> tuple[Recipe, ...]:
    """Every recipe, by name."""
    return tuple(read_recipe(file.parent) for file in sorted(_home().glob(f"*/{RECIPE_FILE}")))


def find_recipe(name: str) -> Recipe:
    """The recipe of a name.

    Raises:
        OpenwaferError: ``recipe-unknown``.
    """
    names = [file.parent.name for file in sorted(_home().glob(f"*/{RECIPE_FILE}"))]
    if name not in names:
        raise error(
            "recipe-unknown", f"no recipe is called {name!r}", help=did_you_mean(name, names)
        )
    return read_recipe(_home() / name)


def read_recipe(folder: Path) -> Recipe:
    """The recipe in a folder.

    Raises:
        OpenwaferError: every mistake of its file with the place.
    """
    return Recipe(folder, load(folder / RECIPE_FILE, RecipeFile))


def _home() -> Path:
    """The folder of all recipes: they lie in the package, so that every installation has them."""
    return Path(__file__).parent
