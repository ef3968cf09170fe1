"""The names under which scripts of the session style import these modules."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_HERE: Final = __name__.rpartition(".")[0]
_CBTORCH: Final = "cerebras.framework.torch"
_OPTIM: Final = "cerebras.models.common.pytorch.optim"

PACKAGES: Final = frozenset(
    (
        "cerebras",
        "cerebras.framework",
        _CBTORCH,
        f"{_CBTORCH}.core",
        "cerebras.workflow",
        "cerebras.workflow.python",
        "cerebras.pb",
        "cerebras.pb.stack",
        "cerebras.models",
        "cerebras.models.common",
        "cerebras.models.common.pytorch",
        _OPTIM,
    )
)
"""Names that hold other modules."""

MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        _CBTORCH: f"{_HERE}.cbtorch",
        f"{_CBTORCH}.amp": f"{_HERE}.amp",
        f"{_CBTORCH}.optim": f"{_HERE}.optim",
        f"{_CBTORCH}.utils": f"{_HERE}.outputs",
        f"{_CBTORCH}.core": f"{_HERE}.scopes",
        f"{_CBTORCH}.core.cb_model": f"{_HERE}.cb_model",
        f"{_CBTORCH}.core.modes": f"{_HERE}.modes",
        _OPTIM: f"{_HERE}.optim",
        f"{_OPTIM}.AdamW": f"{_HERE}.optim",
        f"{_OPTIM}.SGD": f"{_HERE}.optim",
        "cerebras.pb.stack.autogen_pb2": f"{_HERE}.settings",
        "cerebras.workflow.python.cs_perf_analyzer": f"{_HERE}.settings",
    }
)
"""The vendor's modules and ours in their place."""
