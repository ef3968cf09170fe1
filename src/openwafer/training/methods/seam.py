"""The seam between a run and its methods: what a run asks of each of them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from openwafer.diagnostics import Diagnostic
from openwafer.training.data import TokenDataset
from openwafer.training.metrics import StepMetrics, ValidationPoint
from openwafer.training.session.config_sections import Settings
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.store.parts import Json
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.execute.micro_batches import Forward
from openwafer.training.stream.plan.workload import Workload


@dataclass(frozen=True)
class RunParts:
    """What a run has before its step is planned.

    Attributes:
        model: shaped by all methods.
        dataset: the training split.
        folder: of the run.
        weights: with which it begins, by name; none where it goes on.
    """

    model: nn.Module
    dataset: TokenDataset
    folder: RunFolder
    weights: Mapping[str, Tensor]


class ParameterRules:
    """What a method says of the settings of parameters.

    Attributes:
        hidden: names of matrices between features, be they as wide as some table has rows.
        in_rows: names of matrices whose values are kept in a row.
    """

    hidden: Collection[str] = ()
    in_rows: Collection[str] = ()

    def scaled(self, name: str, settings: Settings) -> Settings:
        """The settings of a parameter, from those that the config gives it."""
        return settings


class MethodRun:
    """A method in an open run. Each hook does nothing here; a method defines those that it needs.

    Of several systems the first has it, and its hooks see the micro-batches of that one.

    Attributes:
        saved_as: key of :meth:`state` in what a run saves; empty where there is none.
    """

    saved_as: ClassVar[str] = ""

    def describe(self) -> Iterable[str]:
        """Lines for the log, where the run begins or goes on."""
        return ()

    def remarks(self) -> Iterable[Diagnostic]:
        """Warnings beside the plan of the run, behind those of :meth:`Method.remarks`."""
        return ()

    def attach(self, execution: Execution) -> None:
        """Watch what executes the steps; behind whoever takes a loss scale off the gradients."""

    def forwards(self, forwards: Sequence[Forward]) -> Sequence[Forward]:
        """The forwards of a pass as they are to run."""
        return forwards

    def end_step(self, scale: float, num_tokens: int) -> None:
        """The gradients of a step are complete, and not applied yet.

        Args:
            scale: multiplied the losses; gradients came without it.
            num_tokens: of the step.
        """

    def lay_down(self, folder: RunFolder) -> None:
        """Write what the folder of a run has of the method before its first step."""

    def recording(self, folder: RunFolder, first_step: int) -> AbstractContextManager[Path | None]:
        """Context in which the method writes a file of its own, a line a step.

        Gives the path of a damaged one that was set aside, if there was one.
        """
        return nullcontext()

    def record(self, row: StepMetrics) -> StepMetrics:
        """A step has ended: its row, with what the method has measured of it."""
        return row

    def judged(self, point: ValidationPoint) -> ValidationPoint:
        """A held-out loss, with what the method makes of it."""
        return point

    def tell(self, point: ValidationPoint) -> str:
        """What the method says of a held-out loss, for people; empty where it says nothing."""
        return ""

    def summary(self) -> Iterable[str]:
        """Lines for the log and the terminal, where the process ends its part of the run."""
        return ()

    def state(self) -> Json:
        """What the next step depends on beside the store."""
        return None

    def restore(self, state: Json) -> None:
        """Go on from what :meth:`state` of another process was."""


class Method:
    """A method as the config of a run asks for it.

    Attributes:
        key: of the config; errors name the method by it.
        not_in_stages: why a run in stages refuses it; empty where it does not.
    """

    key: ClassVar[str]
    not_in_stages: ClassVar[str] = "its run sees the passes of a whole model"

    def draw(self, build: Callable[[], nn.Module], vocab_size: int) -> nn.Module:
        """The model that ``build`` builds, with the initial weights that it shall have."""
        return build()

    def shape_weights(self, model: nn.Module, *, has_weights: bool) -> None:
        """Change the weights of a model that was just built; without values, the room for them."""

    def shape_forward(self, model: nn.Module, vocab_size: int) -> None:
        """Change what the modules compute of a model whose weights are in shape.

        The model is the run's, also where it is planned, read, or followed on another system.
        """

    def parameter_rules(self, model: nn.Module, vocab_size: int) -> ParameterRules:
        """What the settings of parameters follow, beside the config's."""
        return ParameterRules()

    def remarks(self, model: nn.Module) -> Iterable[Diagnostic | None]:
        """Warnings beside the plan of a run."""
        return ()

    def export_factors(self, model: nn.Module, vocab_size: int) -> Mapping[str, float]:
        """What exported weights are multiplied by, by name, so that other programs can run them."""
        return {}

    def planned(self, workload: Workload) -> Workload:
        """A step to plan by, with what the method needs beside the model's forward."""
        return workload

    @property
    def one_store(self) -> str:
        """Why several systems cannot have a store each; empty where they can."""
        return ""

    def begin(self, run: RunParts) -> MethodRun:
        """Take part in a run whose step is not planned yet."""
        return MethodRun()
