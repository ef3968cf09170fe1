"""A debugger of runs: it stops, looks and goes back."""

from openwafer.sdk.debug.adapter import Adapter
from openwafer.sdk.debug.console import Console
from openwafer.sdk.debug.halt import Halt, Reason
from openwafer.sdk.debug.messages import Messages
from openwafer.sdk.debug.session import Debugger
from openwafer.sdk.debug.stand import Stand, stand_of

__all__ = ["Adapter", "Console", "Debugger", "Halt", "Messages", "Reason", "Stand", "stand_of"]
