"""The time of a step on several systems like each other, as plans and runs foretell it.

The page docs/design/step-time-of-systems.md derives the terms.
"""

from openwafer.replica_steps.joined import Joined
from openwafer.replica_steps.replica_step import (
    LayerWork,
    Part,
    ReplicaStep,
    StreamedStep,
    replica_step,
)

__all__ = ["Joined", "LayerWork", "Part", "ReplicaStep", "StreamedStep", "replica_step"]
