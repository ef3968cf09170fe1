"""Where a row begins in the state's array."""

from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import inlined
from openwafer.sdk.fabric.state import State


@inlined
def router_row(pe: int) -> int:
    """The PE's router."""
    return w.ROUTER + pe * w.ROUTER_WORDS


@inlined
def core_row(pe: int) -> int:
    """The PE's core."""
    return w.CORE + pe * w.CORE_WORDS


@inlined
def processor_row(pe: int) -> int:
    """The rest of the PE's core."""
    return w.PROCESSOR + pe * w.PROCESSOR_WORDS


@inlined
def sleep_row(pe: int) -> int:
    """When the PE's core goes on."""
    return w.SLEEP + pe * w.SLEEP_WORDS


@inlined
def mailbox_row(pe: int) -> int:
    """The PE's mailbox."""
    return w.MAILBOX + pe * w.MAILBOX_WORDS


@inlined
def unwritten_row(pe: int) -> int:
    """The bits of the PE's memory that say what nothing has written yet."""
    return w.UNWRITTEN + pe * w.UNWRITTEN_WORDS


@inlined
def memory_row(pe: int) -> int:
    """The PE's memory."""
    return w.MEMORY_ROWS + pe * w.MEMORY_WORDS


@inlined
def route_row(pe: int, color: int) -> int:
    """The configuration of a color at the PE's router."""
    return w.ROUTE + color * w.PITCH + pe


@inlined
def channel_row(pe: int, color: int) -> int:
    """The wavelets of a color that the PE's router holds."""
    return w.CHANNEL + (color * w.PITCH + pe) * w.CHANNEL_DEPTH


@inlined
def input_slot(pe: int, queue: int, slot: int) -> int:
    """A slot of the PE's input queue."""
    return w.QUEUE + (queue * w.PITCH + pe) * w.QUEUE_WORDS + slot * w.SLOT_WORDS


@inlined
def output_slot(pe: int, queue: int, slot: int) -> int:
    """A slot of the PE's output queue."""
    return input_slot(pe, queue + w.QUEUES, slot)


@inlined
def thread_row(pe: int, slot: int) -> int:
    """A slot of the PE's threads."""
    return w.THREADS + (slot * w.PITCH + pe) * w.THREAD_WORDS


@inlined
def job_row(thread: int) -> int:
    """The rest of a thread's row."""
    return w.JOB + (thread - w.THREADS) * (w.JOB_WORDS // w.THREAD_WORDS)


@inlined
def account_row(pe: int, slot: int) -> int:
    """The time of a slot of the PE's threads."""
    return w.ACCOUNT + (slot * w.PITCH + pe) * w.ACCOUNT_WORDS


@inlined
def port_row(pe: int, direction: int) -> int:
    """The port of the PE's router in a direction that leads out of the rectangle."""
    return w.PORT + (direction * w.PITCH + pe) * w.PORT_WORDS


@inlined
def operand_row(thread: int, place: int) -> int:
    """Operand of the operation of a thread's row: 0 is the destination."""
    return job_row(thread) + w.J_OPERANDS + place * w.OPERAND_WORDS


@inlined
def dsr_row(pe: int, number: int) -> int:
    """A register of the PE: 16 of each file."""
    return w.DSR + (number * w.PITCH + pe) * w.DSR_WORDS


@inlined
def taken_row(pe: int, queue: int) -> int:
    """How many wavelets of an input queue have started a task of the PE."""
    return w.TAKEN + queue * w.PITCH + pe


@inlined
def fifo_row(pe: int, number: int) -> int:
    """A FIFO of the PE."""
    return w.FIFO_ROWS + (number * w.PITCH + pe) * w.FIFO_WORDS


@inlined
def image_row(image: int) -> int:
    """Tables of an image."""
    return w.IMAGE + image * w.IMAGE_WORDS


@inlined
def map_row(number: int) -> int:
    """The map of a PE's memory."""
    return w.MAP + number * w.MAP_WORDS


@inlined
def vector_row(operation: int) -> int:
    """A vector operation."""
    return w.VECTOR + operation * w.VECTOR_WORDS


@inlined
def sink_row(s: State, pe: int, color: int) -> int:
    """A PE's stream to the host."""
    return w.SINK + w.SINK_WORDS * (pe * w.SINKS + s[w.G_SINK_SLOT + color])


@inlined
def source_row(number: int) -> int:
    """A stream from the host."""
    return w.SOURCE + number * w.SOURCE_WORDS
