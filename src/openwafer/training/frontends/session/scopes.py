"""What scripts find in ``cbtorch.core``: the modules of queries and modes, and names of parts."""

from openwafer.training.frontends.scripts.compiler import name_scope
from openwafer.training.frontends.session import cb_model, modes

__all__ = ["cb_model", "modes", "name_scope"]
