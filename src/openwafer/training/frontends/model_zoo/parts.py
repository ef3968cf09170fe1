"""What the keys of a trainer's YAML name: classes of callbacks, loggers, optimizers, schedules."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from openwafer.training.frontends.model_zoo import callbacks, checkpoints, loggers
from openwafer.training.frontends.present import lr_scheduler, optim, weight_decay_scheduler


def _named(*classes: type[Any]) -> Mapping[str, type[Any]]:
    return MappingProxyType({kind.__name__: kind for kind in classes})


def _public(module: Any, *without: str) -> list[type[Any]]:
    return [getattr(module, n) for n in module.__all__ if n[0].isupper() and n not in without]


OPTIMIZERS: Final = _named(*_public(optim, "Optimizer"))
SCHEDULERS: Final = _named(
    *_public(lr_scheduler, "LRScheduler", "LambdaLR", "ChainedScheduler"),
    *_public(weight_decay_scheduler, "WeightDecayScheduler", "LambdaWD"),
)
LOGGERS: Final = _named(loggers.ProgressLogger, loggers.TensorBoardLogger, loggers.WandbLogger)
CALLBACKS: Final = _named(
    callbacks.CheckLoss,
    callbacks.ComputeNorm,
    callbacks.CountParams,
    callbacks.LogOptimizerParamGroup,
    callbacks.LogSparsity,
    callbacks.ModelEvalMetrics,
    callbacks.RateProfiler,
    callbacks.SelectiveGrad,
    checkpoints.KeepNCheckpoints,
    checkpoints.LoadCheckpointStates,
    checkpoints.SaveCheckpointState,
)

_OF_MACHINE: Final = "it speaks of the vendor's machine, and changes no number here"
UNREAD: Final[Mapping[str, str]] = MappingProxyType(
    dict.fromkeys(
        (
            "DebugArgsPath",
            "DumpAvailableTensorNames",
            "DurationProfiler",
            "FlopUtilization",
            "GlobalFlags",
            "ModelZooParamsMetadata",
            "SamplesStreamedInfo",
            "SavePerformanceData",
            "ScopedTrainFlags",
            "ScopedValidateFlags",
            "TelemetryLogger",
        ),
        _OF_MACHINE,
    )
)
"""Parts that are taken, and nothing reads them."""

REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "BigCodeEvalHarness": "evaluate an exported model with the harness itself",
        "EleutherEvalHarness": "evaluate an exported model with the harness itself",
        "ComputeNormGNS": "write noise_scale into the config of openwafer train",
        "DumpActivations": "register a forward hook of torch in a callback of your own",
        "EmailNotification": "write a callback of your own, and name it by its dotted path",
        "LogInputSummaries": "write a callback of your own, and name it by its dotted path",
        "Lora": "make the model by peft in a function of your own, and name it by its dotted path",
        "NaNChecker": "use CheckLoss, or torch.autograd.set_detect_anomaly",
        "NormTensorListener": "register a forward hook of torch in a callback of your own",
        "OpProfiler": "look at executor.streamed, or run openwafer report",
        "SkipSamples": "give the dataset without them",
        "SlackNotification": "write a callback of your own, and name it by its dotted path",
        "SummaryTensorListener": "register a forward hook of torch in a callback of your own",
        "WeightCompression": "train in the weights' own format",
        "LambdaLR": "write a subclass of it, and use Trainer from Python",
        "LambdaWD": "write a subclass of it, and use Trainer from Python",
    }
)
"""Parts that are not here, with what to do instead."""

DEFAULT_CALLBACKS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "CheckLoss": {},
        "LogOptimizerParamGroup": {"keys": "lr"},
        "ModelEvalMetrics": {},
        "RateProfiler": {},
    }
)
"""Callbacks of every run, unless its YAML sets them to nothing."""
