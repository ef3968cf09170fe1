"""Where everything lies in the simulator's state, one array of 64-bit integers.

The array has regions at fixed places, with room for the largest fabric; only pages that are written
take memory, so zero always means "nothing". A region holds rows of a fixed length: one a PE, image,
filter or event. Plain integers, because the compiled core folds them into its code.
"""

from typing import Final

from openwafer.sdk.program.mailbox import MAILBOX_WORDS as _MAILBOX_WORDS

COLORS: Final = 24
QUEUES: Final = 8
CHANNEL_DEPTH: Final = 4
"""Wavelets that a router holds for each color; an estimate, see docs/design/wafer-model.md."""
QUEUE_SLOTS: Final = 8
NEVER: Final = 1 << 62

# A wavelet: its 32 bits, then these.
CONTROL_BIT: Final = 1 << 32
OUT_SHIFT: Final = 33
FROM_SHIFT: Final = 38
COLOR_SHIFT: Final = 33
"""In queues between core and router, which need no directions."""

# Router rows.
R_ROUTE: Final = 0
R_META: Final = R_ROUTE + COLORS
"""By color: first slot, and how many from bit 8 on."""
R_DATA: Final = R_META + COLORS
R_READY: Final = R_DATA + COLORS * CHANNEL_DEPTH
R_BUSY: Final = R_READY + COLORS * CHANNEL_DEPTH
"""Bit by color with wavelets; from bit 24 on by output queue with wavelets."""
R_AWAKE: Final = R_BUSY + 1
R_FILTERS: Final = R_AWAKE + 1
"""First row of the PE's filters."""
R_HAS_SWAP: Final = R_FILTERS + 1
R_EDGES: Final = R_HAS_SWAP + 1
"""Bit by direction that leads beyond the rectangle."""
ROUTER_WORDS: Final = 248

# Core rows.
C_IN_META: Final = 0
C_IN_DATA: Final = C_IN_META + QUEUES
C_IN_READY: Final = C_IN_DATA + QUEUES * QUEUE_SLOTS
C_OUT_META: Final = C_IN_READY + QUEUES * QUEUE_SLOTS
C_OUT_DATA: Final = C_OUT_META + QUEUES
C_OUT_READY: Final = C_OUT_DATA + QUEUES * QUEUE_SLOTS
C_QUEUE_OF: Final = C_OUT_READY + QUEUES * QUEUE_SLOTS
"""By color: input queue + 1."""
C_OUT_COLOR: Final = C_QUEUE_OF + COLORS
"""By output queue: color + 1."""
C_IMAGE: Final = C_OUT_COLOR + QUEUES
C_MAIN: Final = C_IMAGE + 1
C_UNTIL: Final = C_MAIN + 1
C_OUTCOME: Final = C_UNTIL + 1
C_ENTRY: Final = C_OUTCOME + 1
C_THREADS: Final = C_ENTRY + 1
"""Bit by thread slot that has an operation."""
C_CURSOR: Final = C_THREADS + 1
C_COMMAND: Final = C_CURSOR + 1
C_TEARDOWNS: Final = C_COMMAND + 1
C_FLUSHES: Final = C_TEARDOWNS + 1
"""Bits 0-15: queue whose handler waits until it is empty."""
C_FLUSHED: Final = C_FLUSHES + 1
"""The same bits: status registers, set when a queue was found empty."""
C_AWAKE: Final = C_FLUSHED + 1
C_WHEEL_AT: Final = C_AWAKE + 1
C_WHEEL_NEXT: Final = C_WHEEL_AT + 1
C_SOURCE: Final = C_WHEEL_NEXT + 1
"""First row of the PE's stream sources + 1."""
C_HIGH_TASKS: Final = C_SOURCE + 1
C_MAIN_PRIORITY: Final = C_HIGH_TASKS + 1
C_TASKS_RUN: Final = C_MAIN_PRIORITY + 1
C_BUSY_CYCLES: Final = C_TASKS_RUN + 1
C_RESULT: Final = C_BUSY_CYCLES + 1
C_ROTATED: Final = C_RESULT + 1
"""Counters of the pairs of tasks that take turns."""
CORE_WORDS: Final = 344

# States of the main thread.
MAIN_IDLE: Final = 0
MAIN_BUSY: Final = 1
"""Native code ran ahead; its outcome counts from C_UNTIL on."""
MAIN_REQUEST: Final = 2
MAIN_VECTOR: Final = 3
MAIN_RESUME: Final = 4
MAIN_DISPATCH: Final = 5
"""A task was chosen; its code begins at C_UNTIL."""

COMMAND_NONE: Final = 0
COMMAND_WAITS: Final = 1
COMMAND_RUNS: Final = 2

# Operands, in thread rows and DSRs.
O_KIND: Final = 0
O_ADDRESS: Final = 1
O_WORDS: Final = 2
O_QUEUE: Final = 3
O_COLOR: Final = 4
O_FLAGS: Final = 5
O_VALUE: Final = 6
O_DSR: Final = 7
"""Register that the operand came from + 1."""
O_EXTENT: Final = 8
O_DIMS: Final = 9
O_BASE: Final = 10
O_TRANSFORM: Final = 11
O_INDEX: Final = 12
O_EXTENTS: Final = 16
O_STRIDES: Final = 20
OPERAND_WORDS: Final = 24

NOTHING: Final = 0
SCALAR: Final = 1
MEMORY: Final = 2
FABIN: Final = 3
FABOUT: Final = 4
FIFO: Final = 5
POINTER: Final = 6

# Thread rows: slots 0-7 are microthreads, 8 is the main thread.
MAIN_SLOT: Final = 8
SLOTS: Final = 9
T_OP: Final = 0
T_LEFT: Final = 1
T_OPTIONS: Final = 2
T_ACTIVATE: Final = 3
T_UNBLOCK: Final = 4
T_CONTROL_ACTIVATE: Final = 5
T_CONTROL_UNBLOCK: Final = 6
T_MICROTHREAD: Final = 7
T_INDEX: Final = 8
T_PRIORITY: Final = 9
T_PLACE: Final = 10
T_NEXT: Final = 11
T_WIDTH: Final = 12
T_GAP: Final = 13
T_ACCUMULATOR: Final = 14
T_CONTROL_SEEN: Final = 15
T_DONE: Final = 16
T_ADVANCES: Final = 17
"""1 while the control wavelet that advances the switch waits to be sent."""
T_OPERANDS: Final = 18
THREAD_WORDS: Final = T_OPERANDS + 4 * OPERAND_WORDS
THREADS_WORDS: Final = 1032
"""All slots of a PE. An odd number of cache lines a row spreads rows over the cache."""

# DSRs: an operand and the options T_OPTIONS..T_PRIORITY of the thread row, minus T_OPTIONS.
D_OPTIONS: Final = OPERAND_WORDS
DSR_WORDS: Final = 32
NUM_DSRS: Final = 48

# FIFOs.
F_ADDRESS: Final = 0
F_ELEMENTS: Final = 1
F_WORDS: Final = 2
F_HEAD: Final = 3
F_COUNT: Final = 4
F_ACTIVATE_PUSH: Final = 5
F_ACTIVATE_POP: Final = 6
F_WAS_FULL: Final = 7
F_WAS_EMPTY: Final = 8
F_READ_LENGTH: Final = 9
F_WRITE_LENGTH: Final = 10
F_FULL_ACTION: Final = 11
F_EMPTY_ACTION: Final = 12
FIFO_WORDS: Final = 13
FIFOS: Final = 16

# Filters.
L_KIND: Final = 0
L_COUNT_DATA: Final = 1
L_COUNT_CONTROL: Final = 2
L_COUNTER: Final = 3
L_LIMIT1: Final = 4
L_LIMIT2: Final = 5
L_MAX: Final = 6
L_FILTER_CONTROL: Final = 7
L_MIN_INDEX: Final = 8
L_MAX_INDEX: Final = 9
FILTER_WORDS: Final = 10
FILTER_OFF: Final = 0
FILTER_COUNTER: Final = 1
FILTER_SPARSE: Final = 2
FILTER_RANGE: Final = 3

# Tables of an image: entry + 1 by id.
I_DATA: Final = 0
I_LOCAL: Final = I_DATA + 64
I_CONTROL: Final = I_LOCAL + 64
I_TEARDOWN: Final = I_CONTROL + 64
I_FLUSH: Final = I_TEARDOWN + COLORS
I_COMMAND: Final = I_FLUSH + 16
I_ROTATION: Final = I_COMMAND + 1
"""Pairs of tasks that take turns: input queue + 1, entry and limit of each."""
ROTATIONS: Final = 2
ROTATION_WORDS: Final = 3
I_OFFSETS: Final = I_ROTATION + ROTATIONS * ROTATION_WORDS
"""By input queue: added to the ids of control tasks."""
IMAGE_WORDS: Final = 256

# Rows of the vector operations.
V_SOURCES: Final = 0
V_DESTINATION_WORDS: Final = 1
V_SOURCE_WORDS: Final = 2
V_WIDTH: Final = 5
V_GAP: Final = 6
V_OVERHEAD: Final = 7
VECTOR_WORDS: Final = 8
NUM_VECTOR_CODES: Final = 64
LAST_MOVE: Final = 4
"""Codes 1 to this copy bits."""

# Stream sources.
S_PE: Final = 0
S_COLOR: Final = 1
S_NEXT: Final = 2
S_END: Final = 3
S_NEXT_ROW: Final = 4
SOURCE_WORDS: Final = 5

# Whole-machine scalars.
G_NOW: Final = 0
G_NUM_PES: Final = 1
G_WIDTH: Final = 2
G_HEIGHT: Final = 3
G_ADDRESS: Final = 4
"""Native address of the array."""
G_EVENT_LIMIT: Final = 5
G_HOP: Final = 6
G_RAMP_IN: Final = 7
G_RAMP_OUT: Final = 8
G_IS_WSE3: Final = 9
G_ROUTERS: Final = 10
G_CORES: Final = 11
G_IN_WHEEL: Final = 12
G_COMMANDS: Final = 13
G_SOURCES: Final = 14
G_WANTED: Final = 15
"""Stream sinks that have less than the host waits for."""
G_ERROR: Final = 16
G_ERROR_PE: Final = 17
G_ERROR_A: Final = 18
G_ERROR_B: Final = 19
G_EVENTS: Final = 20
G_TEXT: Final = 21
G_LOG: Final = 22
G_WAVELETS: Final = 23
G_LANDINGS: Final = 24
G_ELEMENTS: Final = 25
G_SWITCHES: Final = 26
G_STALLS: Final = 27
G_SINK_COLORS: Final = 28
G_MOVES: Final = 29
G_SOURCE_ROWS: Final = 30
G_DEPTHS: Final = 32
"""By input queue, then by output queue."""
G_SINK_SLOT: Final = 48
"""By color: its number among the sinks of a PE."""
G_ARGUMENTS: Final = 80
GLOBAL_WORDS: Final = 128

SINKS: Final = 4
WHEEL: Final = 1024

# Events.
E_LANDING: Final = 1
E_SINK: Final = 2
E_PRINT: Final = 3
EVENT_WORDS: Final = 6

# Errors that stop the machine.
ERROR_CONFLICT: Final = 1
ERROR_TRAP: Final = 2
ERROR_BOUNDS: Final = 3
ERROR_UNBOUND_CONTROL: Final = 4
ERROR_NO_QUEUE: Final = 5
ERROR_BAD_OPERAND: Final = 6
ERROR_REGISTER: Final = 7
ERROR_FIFO: Final = 8

# Why the compiled core comes back.
STOP_GOAL: Final = 0
STOP_IDLE: Final = 1
STOP_LIMIT: Final = 2
STOP_DRAIN: Final = 3
STOP_ERROR: Final = 4

GOAL_CYCLES: Final = 0
GOAL_COMMAND: Final = 1
GOAL_INJECTED: Final = 2
GOAL_COLLECTED: Final = 3

# Regions.
MAX_PES: Final = 1 << 20
MAILBOX_WORDS: Final = _MAILBOX_WORDS
MAX_IMAGES: Final = 1 << 20
MAX_FILTERS: Final = 1 << 22
MAX_EVENTS: Final = 1 << 24
MAX_TEXT: Final = 1 << 20
MAX_SOURCES: Final = 1 << 21
MAX_SOURCE_WORDS: Final = 1 << 28
REGISTERS: Final = 4096
MEMORY_WORDS: Final = 6144
"""Four 16-bit words of a PE's memory in one of the array."""

VECTOR: Final = GLOBAL_WORDS
WHEEL_LIST: Final = VECTOR + NUM_VECTOR_CODES * VECTOR_WORDS
ROUTER_LIST: Final = WHEEL_LIST + WHEEL
CORE_LIST: Final = ROUTER_LIST + MAX_PES
MOVES: Final = CORE_LIST + MAX_PES
IMAGE: Final = MOVES + 8 * MAX_PES
SINK: Final = IMAGE + MAX_IMAGES * IMAGE_WORDS
MAILBOX: Final = SINK + MAX_PES * SINKS * 2
ROUTER: Final = MAILBOX + MAX_PES * MAILBOX_WORDS
CORE: Final = ROUTER + MAX_PES * ROUTER_WORDS
THREADS: Final = CORE + MAX_PES * CORE_WORDS
DSR: Final = THREADS + MAX_PES * THREADS_WORDS
FIFO_ROWS: Final = DSR + MAX_PES * NUM_DSRS * DSR_WORDS
FILTER: Final = FIFO_ROWS + MAX_PES * FIFOS * FIFO_WORDS
EVENT: Final = FILTER + MAX_FILTERS * FILTER_WORDS
TEXT: Final = EVENT + MAX_EVENTS * EVENT_WORDS
SOURCE: Final = TEXT + MAX_TEXT
SOURCE_DATA: Final = SOURCE + MAX_SOURCES * SOURCE_WORDS
REGISTER: Final = SOURCE_DATA + MAX_SOURCE_WORDS
MEMORY_ROWS: Final = REGISTER + MAX_PES * REGISTERS // 4
