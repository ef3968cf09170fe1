"""A simulated wafer as the device that trains a model."""

from openwafer.fabric_device.backend import Fabric
from openwafer.training.metrics.fabric_report import FabricReport, LayerPass
from openwafer.training.stream.stream_options import FabricOptions

__all__ = ["Fabric", "FabricOptions", "FabricReport", "LayerPass"]
