"""Where a row begins in the state's array."""

from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled


@compiled
def router_row(pe: int) -> int:
    """The PE's router."""
    return w.ROUTER + pe * w.ROUTER_WORDS


@compiled
def core_row(pe: int) -> int:
    """The PE's core."""
    return w.CORE + pe * w.CORE_WORDS


@compiled
def mailbox_row(pe: int) -> int:
    """The PE's mailbox."""
    return w.MAILBOX + pe * w.MAILBOX_WORDS


@compiled
def memory_row(pe: int) -> int:
    """The PE's memory."""
    return w.MEMORY_ROWS + pe * w.MEMORY_WORDS


@compiled
def thread_row(pe: int, slot: int) -> int:
    """A slot of the PE's threads."""
    return w.THREADS + pe * w.THREADS_WORDS + slot * w.THREAD_WORDS


@compiled
def operand_row(thread: int, place: int) -> int:
    """Operand of a thread's row: 0 is the destination."""
    return thread + w.T_OPERANDS + place * w.OPERAND_WORDS


@compiled
def dsr_row(pe: int, number: int) -> int:
    """A register of the PE: 16 of each file."""
    return w.DSR + (pe * w.NUM_DSRS + number) * w.DSR_WORDS


@compiled
def fifo_row(pe: int, number: int) -> int:
    """A FIFO of the PE."""
    return w.FIFO_ROWS + (pe * w.FIFOS + number) * w.FIFO_WORDS


@compiled
def image_row(image: int) -> int:
    """Tables of an image."""
    return w.IMAGE + image * w.IMAGE_WORDS


@compiled
def vector_row(operation: int) -> int:
    """A vector operation."""
    return w.VECTOR + operation * w.VECTOR_WORDS


@compiled
def source_row(number: int) -> int:
    """A stream from the host."""
    return w.SOURCE + number * w.SOURCE_WORDS
