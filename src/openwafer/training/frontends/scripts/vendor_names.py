"""The names under which scripts of the vendor's styles import modules, and ours in their place."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_STYLES: Final = __name__.rpartition(".")[0].rpartition(".")[0]
_SESSION: Final = f"{_STYLES}.session"
_PRESENT: Final = f"{_STYLES}.present"
_ESTIMATOR: Final = f"{_STYLES}.estimator.cs_estimator"
_CBTORCH: Final = "cerebras.framework.torch"
_OPTIM: Final = "cerebras.models.common.pytorch.optim"
_CSTORCH: Final = ("cerebras.pytorch", "cerebras_pytorch", "cerebras_pytorch.experimental")
_CSTORCH_PACKAGES: Final = ("", ".core", ".distributed", ".nn", ".optim", ".utils")
_APPLIANCE: Final = ("environment", "errors", "log", "run_utils")

PACKAGES: Final = frozenset(
    (
        "cerebras",
        "cerebras.framework",
        _CBTORCH,
        f"{_CBTORCH}.core",
        f"{_CBTORCH}.optim",
        "cerebras.workflow",
        "cerebras.workflow.python",
        "cerebras.pb",
        "cerebras.pb.stack",
        "cerebras.models",
        "cerebras.models.common",
        "cerebras.models.common.pytorch",
        _OPTIM,
        *(f"{root}{below}" for root in _CSTORCH for below in _CSTORCH_PACKAGES),
        "cerebras.tf",
        "cerebras_appliance",
        "modelzoo",
        "modelzoo.common",
        "modelzoo.common.tf",
        "modelzoo.common.tf.estimator",
    )
)
"""Names that hold other modules."""

_OF_CSTORCH: Final = MappingProxyType(
    {
        "": "cstorch",
        ".amp": "amp",
        ".backend": "backends",
        ".core.annotation": "annotations",
        ".distributed": "distributed",
        ".distributed.cluster_resolver": "cluster",
        ".lib": "annotations",
        ".metrics": "metrics",
        ".nn": "nn",
        ".nn.functional": "functional",
        ".optim": "optim",
        ".optim.lr_scheduler": "lr_scheduler",
        ".optim.weight_decay_scheduler": "weight_decay_scheduler",
        ".sparse": "sparse",
        ".utils": "tools",
        ".utils.data": "data",
        ".utils.kernel": "annotations",
        ".utils.nest": "nest",
        ".utils.num_kv_groups": "annotations",
        ".utils.step_closures": "traced",
        ".utils.tensorboard": "tensorboard",
        ".utils.tracker": "rates",
        ".utils.utils": "annotations",
    }
)

MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        _CBTORCH: f"{_SESSION}.cbtorch",
        f"{_CBTORCH}.amp": f"{_SESSION}.amp",
        f"{_CBTORCH}.optim": f"{_SESSION}.optim",
        f"{_CBTORCH}.optim.lr_scheduler": f"{_SESSION}.lr_scheduler",
        f"{_CBTORCH}.utils": f"{_SESSION}.outputs",
        f"{_CBTORCH}.core": f"{_SESSION}.scopes",
        f"{_CBTORCH}.core.cb_model": f"{_SESSION}.cb_model",
        f"{_CBTORCH}.core.modes": f"{_SESSION}.modes",
        _OPTIM: f"{_SESSION}.optim",
        f"{_OPTIM}.AdamW": f"{_SESSION}.optim",
        f"{_OPTIM}.SGD": f"{_SESSION}.optim",
        "cerebras.pb.stack.autogen_pb2": f"{_SESSION}.settings",
        "cerebras.workflow.python.cs_perf_analyzer": f"{_SESSION}.settings",
        "cerebras.modelzoo.trainer": f"{_STYLES}.model_zoo.trainer",
        "cerebras.tf.cs_estimator": _ESTIMATOR,
        "cerebras.tf.run_config": _ESTIMATOR,
        "cerebras.tf.cs_slurm_cluster_resolver": f"{_STYLES}.estimator.cluster",
        "modelzoo.common.tf.estimator.cs_estimator": _ESTIMATOR,
        "modelzoo.common.tf.estimator.run_config": _ESTIMATOR,
        "modelzoo.common.tf.estimator.utils": f"{_STYLES}.estimator.cluster",
    }
    | {f"{root}.core.modes": f"{_SESSION}.modes" for root in _CSTORCH}
    | {f"cerebras_appliance.{name}": f"{_PRESENT}.appliance" for name in _APPLIANCE}
    | {
        f"{root}{below}": f"{_PRESENT}.{ours}"
        for root in _CSTORCH
        for below, ours in _OF_CSTORCH.items()
    }
)
"""The vendor's modules and ours in their place."""
