"""Layers on a wafer: a rectangle of cores for each, neighbours side by side, replicas in tiles."""

from openwafer.planning.placement.choice import (
    Placement,
    StepBound,
    least_step,
    place_pipeline,
)
from openwafer.planning.placement.faults import find_faults
from openwafer.planning.placement.floor_plan import FloorPlan, PlacedLayer
from openwafer.planning.placement.layer_load import (
    Demand,
    LayerLoad,
    PipelineTask,
    Recomputing,
    Rectangle,
)
from openwafer.planning.placement.placement_file import write_placement

__all__ = [
    "Demand",
    "FloorPlan",
    "LayerLoad",
    "PipelineTask",
    "PlacedLayer",
    "Placement",
    "Recomputing",
    "Rectangle",
    "StepBound",
    "find_faults",
    "least_step",
    "place_pipeline",
    "write_placement",
]
