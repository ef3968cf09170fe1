"""What becomes of a stage's gradients in a pass, micro-batch by micro-batch and at its end."""

from dataclasses import dataclass

from openwafer.training.stream.stages.stage_replicas import StageReplicas
from openwafer.training.stream.stages.tied_weights import TiedWeights


@dataclass
class StageGradients:
    """The gradients of one stage, and the weights that come of them.

    Attributes:
        tied: weights that it shares with another stage.
        replicas: of the stage; ``None`` where there is one.
        are_weights_old: whether those of this system may be others than those that were updated.
    """

    tied: TiedWeights
    replicas: StageReplicas | None
    are_weights_old: bool = True

    def begin_backward(self) -> None:
        """The backward of a micro-batch begins."""
        self.tied.begin_backward()

    def end_backward(self, micro_batch: int) -> None:
        """The backward of a micro-batch has ended."""
        self.tied.end_backward(micro_batch)
        if self.replicas is not None:
            self.replicas.end_backward()

    def end_pass(self) -> None:
        """Those of all micro-batches are here; the systems that update have their sum then."""
        self.tied.end_pass()
        if self.replicas is not None:
            self.replicas.end_pass()

    def renew(self) -> None:
        """Bring new weights, where there are any, to all systems that compute with them."""
        if not self.are_weights_old:
            return
        if self.replicas is not None:
            self.replicas.renew()
        self.tied.renew()
        self.are_weights_old = False

    def close(self) -> None:
        """End the threads."""
        if self.replicas is not None:
            self.replicas.close()
