"""Where everything lies in the simulator's state, one array of 64-bit integers.

The array has regions at fixed places, with room for the largest fabric; only pages that are written
take memory, so zero always means "nothing". A region holds rows of a fixed length: one a PE, image,
filter or event. Plain integers, because the compiled core folds them into its code. Each band of
the fabric, which one thread simulates, has regions of its own before those that all share.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from openwafer.sdk.program.mailbox import MAILBOX_WORDS as _MAILBOX_WORDS

COLORS: Final = 24
COLORS_MASK: Final = (1 << COLORS) - 1
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
OWN_ROUTER_BIT: Final = 1 << 41
"""A command for the router of the PE that sends it, and for no other."""

# Router rows: a cache line of what is looked at in every cycle.
R_BUSY: Final = 0
"""Bit by color with wavelets; from bit 24 on by output queue with wavelets; then FULL_SHIFT."""
FULL_SHIFT: Final = 32
"""Bit by color whose channel is full."""
PORTS_SHIFT: Final = 56
"""Bit by direction whose port has words for the router; then PACED_BIT."""
PACED_BIT: Final = 1 << 60
"""Ports of the router may let it wait: they take less than a wavelet a cycle, or words of other PEs
for the host, too."""
R_FLAGS: Final = 1
"""AWAKE_BIT, SWAP_BIT, bits by direction beyond the edge, FILTER_BIT, the first row of filters."""
AWAKE_BIT: Final = 1
SWAP_BIT: Final = 2
EDGE_SHIFT: Final = 2
FILTER_BIT: Final = 64
FILTERS_SHIFT: Final = 8
R_LANDED: Final = 2
"""Bit by color that a wavelet landed on, and in which cycle."""
LANDED_SHIFT: Final = 24
R_HEADS: Final = 3
"""Two bits by color: slot of the first wavelet."""
R_TAILS: Final = 4
R_TAKES: Final = 5
"""Bit by color that is taken from a direction, two directions a word; follows from the routes."""
TAKES_BITS: Final = 24
R_GONE: Final = R_TAKES + 2
GONE_SHIFT: Final = 24
"""Bit by color whose wavelet went nowhere in the cycle of R_LANDED."""
ROUTER_WORDS: Final = 8

# Core rows: a cache line of what is looked at in every cycle.
C_IN: Final = 0
"""A byte by queue: three bits of first slot, four of the number of wavelets, START_BIT."""
C_OUT: Final = 1
COUNT_SHIFT: Final = 3
COUNT_MASK: Final = 15
COUNTS: Final = 0x7878787878787878
"""The numbers of all queues."""
QUEUE_MASK: Final = 15
START_BIT: Final = 128
"""Since an input queue was empty, a wavelet came that may start a task."""
STARTS: Final = 0x8080808080808080 - (1 << 64)
"""These bits of all queues, as a signed word."""
C_THREADS: Final = 2
"""Bit by thread slot that has an operation; then by microthread of medium and of high priority;
then by microthread that is blocked."""
MEDIUM_SHIFT: Final = 16
HIGH_SHIFT: Final = 24
HELD_SHIFT: Final = 32
ALL_SLOTS: Final = 511
MICROTHREADS: Final = 255
C_MAIN: Final = 3
C_AWAKE: Final = 4
"""1 while the core is on the list; from SOURCE_SHIFT on the first row of its stream sources + 1."""
SOURCE_SHIFT: Final = 1
C_QUEUE_OF: Final = 5
"""A byte by color: input queue + 1, and START_BIT where its wavelets may start a task."""
CORE_WORDS: Final = 8

# Processor rows: the rest of a core.
P_IMAGE: Final = 0
P_OUTCOME: Final = 1
P_ENTRY: Final = 2
P_CURSOR: Final = 3
P_COMMAND: Final = 4
P_TEARDOWNS: Final = 5
P_FLUSHES: Final = 6
"""Bits 0-15: queue whose handler waits until it is empty."""
P_HIGH_TASKS: Final = 7
P_MAIN_PRIORITY: Final = 8
P_TASKS_RUN: Final = 9
P_FLUSHED: Final = 10
"""Bits as of P_FLUSHES: status registers, set when a queue was found empty."""
P_RESULT: Final = 11
P_OUT_COLOR: Final = 12
"""A byte by output queue: color + 1."""
P_ROTATED: Final = 13
"""Counters of the pairs of tasks that take turns."""
P_BEGAN: Final = 15
"""When the code of the last task began, or :data:`HAD_VECTORS`."""
HAD_VECTORS: Final = -1
"""It handed the machine a vector operation; those of native code end later than it began."""
PROCESSOR_WORDS: Final = 16

# Sleep rows: when a core goes on.
Z_AT: Final = 0
"""Cycle that it lies in the wheel for; 0 when it does not."""
Z_NEXT: Final = 1
"""The next one of the list in the wheel + 1."""
Z_UNTIL: Final = 2
Z_READY: Final = 3
"""Local tasks that could run when the last one began, or that the machine has activated since."""
SLEEP_WORDS: Final = 4

# Queue rows: a slot is a wavelet and the cycle it is ready at; once a wavelet has left an output
# queue, the cycle from which its place can be used.
SLOT_WORDS: Final = 2
QUEUE_WORDS: Final = QUEUE_SLOTS * SLOT_WORDS

# States of the main thread.
MAIN_IDLE: Final = 0
MAIN_BUSY: Final = 1
"""Native code ran ahead; its outcome counts from Z_UNTIL on."""
MAIN_REQUEST: Final = 2
MAIN_VECTOR: Final = 3
MAIN_RESUME: Final = 4
MAIN_DISPATCH: Final = 5
"""A task was chosen; its code begins at Z_UNTIL."""
MAIN_REST: Final = 6
"""Idle, and only a wavelet or what makes it MAIN_IDLE can give it something to do."""

COMMAND_NONE: Final = 0
COMMAND_WAITS: Final = 1
COMMAND_RUNS: Final = 2

# Operands, in thread rows and DSRs; what each beat needs lies in the first cache line.
O_KIND: Final = 0
O_ADDRESS: Final = 1
O_QUEUE: Final = 2
O_COLOR: Final = 3
O_FLAGS: Final = 4
O_VALUE: Final = 5
O_DIMS: Final = 6
O_STRIDES: Final = 7
O_EXTENTS: Final = 11
O_INDEX: Final = 15
O_WORDS: Final = 19
O_DSR: Final = 20
"""Register that the operand came from + 1."""
O_EXTENT: Final = 21
O_BASE: Final = 22
O_TRANSFORM: Final = 23
PRIORITY_SHIFT: Final = 16
"""Of the flags: priority of microthreads with that fabric operand."""
OPERAND_WORDS: Final = 24

NOTHING: Final = 0
SCALAR: Final = 1
MEMORY: Final = 2
FABIN: Final = 3
FABOUT: Final = 4
FIFO: Final = 5
POINTER: Final = 6

# Thread rows: slots 0-7 are microthreads, 8 is the main thread. A cache line has all that beats of
# the simplest operations need.
MAIN_SLOT: Final = 8
SLOTS: Final = 9
T_LEFT: Final = 0
T_NEXT: Final = 1
T_GAP: Final = 2
T_PLAN: Final = 3
T_DONE: Final = 4
T_ADDRESS: Final = 5
"""Of the memory operand, for plans that move words; so is the stride."""
T_STRIDE: Final = 6
T_OP: Final = 7
THREAD_WORDS: Final = 8

# Job rows: what else there is to know about the operation of a thread.
J_OPTIONS: Final = 0
J_ACTIVATE: Final = 1
J_UNBLOCK: Final = 2
J_CONTROL_ACTIVATE: Final = 3
J_CONTROL_UNBLOCK: Final = 4
J_MICROTHREAD: Final = 5
J_INDEX: Final = 6
J_PRIORITY: Final = 7
J_PLACE: Final = 8
J_ACCUMULATOR: Final = 9
J_CONTROL_SEEN: Final = 10
J_WIDTH: Final = 11
J_ADVANCES: Final = 12
"""1 while the control wavelet that advances the switch waits to be sent."""
J_HOLDS: Final = 13
"""Cycles for which a beat of memory alone keeps other threads' beats away."""
J_TURNS: Final = 14
"""Cycles of its pauses that still come of reads that take turns."""
J_HELD_UP: Final = 15
"""The last cycle in which another thread's beat delayed one of its own."""
J_OPERANDS: Final = 16
JOB_WORDS: Final = J_OPERANDS + 4 * OPERAND_WORDS

# Plans: how a beat goes. ANY may be anything; the others move one word between fabric and memory,
# or compute one element of memory, scalars and at most one fabric input.
PLAN_ANY: Final = 0
PLAN_SEND: Final = 1
PLAN_RECEIVE: Final = 2
PLAN_COMPUTE: Final = 3

# DSRs: an operand and the options J_OPTIONS..J_PRIORITY of the job row, minus J_OPTIONS.
D_OPTIONS: Final = OPERAND_WORDS
DSR_WORDS: Final = 32
DSRS: Final = 48

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
F_PRIORITY: Final = 13
FIFO_WORDS: Final = 14
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
L_PASSED: Final = 10
"""Wavelets that it has let into the core, and those that it has not."""
L_DROPPED: Final = 11
FILTER_WORDS: Final = 12
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
I_MAP: Final = I_OFFSETS + QUEUES
"""Number of its memory's map + 1."""
I_PRIORITIES: Final = I_MAP + 1
"""Two bits by input queue: priority of microthreads that read from it."""
IMAGE_WORDS: Final = 256

# Rows of the vector operations.
V_SOURCES: Final = 0
V_DESTINATION_WORDS: Final = 1
V_SOURCE_WORDS: Final = 2
V_WIDTH: Final = 5
VECTOR_WORDS: Final = 8
NUM_VECTOR_CODES: Final = 64
LAST_MOVE: Final = 4
"""Codes 1 to this copy bits."""

# Account rows: a slot's time, by what the slot does.
A_STATE: Final = 0
"""What it does now, of those below, and since when."""
A_SINCE: Final = 1
A_SLOTS: Final = 2
"""Of the main thread's row: what all microthreads do, STATE_BITS each."""
A_NOTED: Final = 3
"""Of the main thread's row: what code has said of its cycles that a record has already, as the four
words of the mailbox from BEATS on."""
A_CYCLES: Final = 8
ACCOUNT_WORDS: Final = 40
STATE_BITS: Final = 5
STATE_MASK: Final = 31

# What a slot does, see :class:`~openwafer.sdk.fabric.account.SlotState`.
IN_NOTHING: Final = 0
IN_SCALAR: Final = 1
IN_BEAT: Final = 2
IN_PAUSE: Final = 3
IN_TURN: Final = 4
IN_DRAIN: Final = 5
IN_SWITCH: Final = 6
IN_REQUEST: Final = 7
IN_BLOCKED_TASK: Final = 8
IN_BLOCKED_THREAD: Final = 9
IN_LOST_BEAT: Final = 10
IN_FIFO: Final = 11
IN_INPUT: Final = 12
"""Then by input queue; output queues as well."""
IN_OUTPUT: Final = IN_INPUT + QUEUES
NUM_STATES: Final = IN_OUTPUT + QUEUES

# Stream sources.
S_PE: Final = 0
S_COLOR: Final = 1
S_NEXT: Final = 2
S_END: Final = 3
S_NEXT_ROW: Final = 4
S_LINK: Final = 5
"""FROM_HOST where the words enter the core; else the direction of the port that they come by."""
S_WAY: Final = 6
"""Of what enters the core: the way of the port that it takes time of, or 0; and the cycle from
which the first word may have come from there."""
S_FROM: Final = 7
SOURCE_WORDS: Final = 8

# Port rows: a router's link to outside. Its two ways, into the fabric and out of it, have the same
# words.
N_IN: Final = 0
N_OUT: Final = 5
N_PERIOD: Final = 0
"""Cycles from word to word, and the time of the next one, in parts of PORT_CYCLE; 0: no way."""
N_NEXT: Final = 1
N_COUNT: Final = 2
"""Words that have passed, and the cycles of the first and the last one."""
N_FIRST: Final = 3
N_LAST: Final = 4
N_SOURCE: Final = 10
"""The first row of the words that wait to enter + 1."""
N_COLORS: Final = 11
"""Bit by color that leaves the fabric here."""
N_WANTED: Final = 12
"""Words that the program lets leave which the host still waits for; 0 and below: for none."""
PORT_WORDS: Final = 16
PORT_CYCLE_SHIFT: Final = 20
PORT_CYCLE: Final = 1 << PORT_CYCLE_SHIFT

# Scalars that are the same in all bands.
G_NOW: Final = 0
G_NUM_PES: Final = 1
G_WIDTH: Final = 2
G_HEIGHT: Final = 3
G_LOG: Final = 4
"""What is noted of PEs that are looked at: LOG_LANDINGS, LOG_ALL, then fields from LOG_TOP on."""
LOG_LANDINGS: Final = 1
LOG_ALL: Final = 2
LOG_TOP: Final = 4
"""The first row of PEs; then the one behind the last, then a bit by color."""
LOG_BOTTOM: Final = 16
LOG_COLORS: Final = 32
LOG_ROWS_MASK: Final = (1 << (LOG_BOTTOM - LOG_TOP)) - 1
G_EVENT_LIMIT: Final = 5
G_HOP: Final = 6
G_RAMP_IN: Final = 7
G_RAMP_OUT: Final = 8
G_IS_WSE3: Final = 9
G_SINK_COLORS: Final = 10
G_SOURCE_ROWS: Final = 11
G_BANDS: Final = 12
G_PLACE_KNOWN: Final = 13
"""Cycles until the core knows that a wavelet has left its output queue."""
G_STOPS_AT_OVERRUN: Final = 14
G_IS_CHECKED: Final = 15
G_STEPS: Final = 16
"""By direction: how far away the next PE's number is."""
G_HAS_PLANS: Final = 20
"""Simple operations go by plans, see :mod:`openwafer.sdk.fabric.beat`."""
# Of the generation's time, see :mod:`openwafer.sdk.arch.timing`.
G_TASK: Final = 21
G_COMMAND: Final = 22
G_BEAT: Final = 23
G_DRAIN: Final = 24
G_SWITCH: Final = 25
G_LOAD: Final = 26
G_FLOAT: Final = 27
G_ROW_WORDS: Final = 28
G_STRIDE_WIDTHS: Final = 29
G_LAUNCHED: Final = 30
"""When the host gave the last command to the PEs of the first column."""
G_FILTERS: Final = 31
"""How many filters the PEs have."""
G_DEPTHS: Final = 32
"""By input queue, then by output queue."""
G_SINK_SLOT: Final = 48
"""By color: its number among the sinks of a PE."""
G_LOG_FIRST: Final = 72
"""The PEs that are looked at: from this one on, up to the one before G_LOG_END."""
G_LOG_END: Final = 73
G_LOG_BEGIN: Final = 74
"""The first cycle of which something is noted, and the last one."""
G_LOG_LAST: Final = 75
G_HAS_ACCOUNT: Final = 76
"""The time of slots is booked."""
G_SOURCE_ROOM: Final = 77
"""Words that streams from the host have room for."""
G_SWITCHED: Final = 78
"""Mask of the colors that have switch positions on some PE, or may get some from code."""
G_WAVELET_SWITCH: Final = 79
"""Of the generation's time."""
G_ARGUMENTS: Final = 80
G_BAND_ADDRESSES: Final = 96
SAME_WORDS: Final = 160

# Scalars of each band.
G_ADDRESS: Final = 160
"""Native address of the array."""
G_FIRST: Final = 161
"""The band's PEs: from this one on, up to the one before G_END."""
G_END: Final = 162
G_BAND: Final = 163
G_ROUTERS: Final = 164
G_CORES: Final = 165
G_IN_WHEEL: Final = 166
G_MOVES: Final = 167
G_FIRST_COLOR: Final = 168
"""The color that may go first in this cycle."""
G_EVENTS: Final = 169
G_TEXT: Final = 170
G_NEXT: Final = 171
"""The next cycle in which the band has something to do."""
G_CROSSINGS: Final = 172
"""Wavelets that leave the band in this cycle: to the west, to the east."""
G_CALLS: Final = 174
"""Routers beyond the band to wake: in the west, in the east."""
G_ERROR: Final = 176
G_ERROR_PE: Final = 177
G_ERROR_A: Final = 178
G_ERROR_B: Final = 179
G_SEEN: Final = 180
"""How many overruns the band has told of."""
G_INTERRUPT: Final = 181
"""Of the first band: the host, which waits in another thread, wants an end."""
G_INTERRUPTED: Final = 182
"""The same as all bands have it, once a cycle."""

# Scalars of each band that count for their sum.
G_COMMANDS: Final = 184
G_SOURCES: Final = 185
G_WANTED: Final = 186
"""Stream sinks that have less than the host waits for."""
G_WAVELETS: Final = 187
G_LANDINGS: Final = 188
G_ELEMENTS: Final = 189
G_SWITCHES: Final = 190
FIRST_SUM: Final = G_COMMANDS
END_SUM: Final = G_SWITCHES + 1

G_EPOCH: Final = 200
"""How many barriers the band has reached; in a cache line of its own."""
# Of stepped code, which has one band.
G_STOPS: Final = 208
"""Native address of masks of 64 bits, of each PE and behind these of each place of the program:
a main thread stops at a place whose mask meets that of its PE. 0 where code is not stepped."""
G_HELD: Final = 209
"""How many main threads have stopped so in this cycle, and have not gone on; 1 more where a word of
G_WATCHED has changed."""
G_STOP_PE: Final = 210
"""The PE, + 1, that stops where it has begun G_STOP_STATEMENT statements; 0 for none."""
G_STOP_STATEMENT: Final = 211
G_WATCHED: Final = 212
"""Native address of words that the host watches: their number; of each its PE, its place among the
16-bit words of the state, and what it was; 0 for none."""
GLOBAL_WORDS: Final = 256
MAX_BANDS: Final = 64

SINKS: Final = 4
K_SENT: Final = 0
"""Words that were sent to the host, how many it waits for, and the way of the port that they take
time of, or 0."""
K_WANTED: Final = 1
K_WAY: Final = 2
SINK_WORDS: Final = 3
WHEEL: Final = 1024

# Events, see :mod:`openwafer.sdk.fabric.events`.
E_KIND: Final = 0
E_CYCLE: Final = 1
E_PE: Final = 2
E_WHERE: Final = 3
"""Color, link, queue, slot and place in the source, each 1 more than its number; 0 is none."""
E_NUMBER: Final = 4
E_DATA: Final = 5
EVENT_WORDS: Final = 6
LINK_SHIFT: Final = 8
QUEUE_FIELD_SHIFT: Final = 16
SLOT_FIELD_SHIFT: Final = 24
PLACE_FIELD_SHIFT: Final = 32
OTHER_COLOR_SHIFT: Final = 8
"""Of a number: above directions or an operation's code, 1 more than a color, then than a queue."""
OTHER_QUEUE_SHIFT: Final = 16
GAP_SHIFT: Final = 24
"""Then of an operation's: cycles between beats, and from TURNS_SHIFT on those of its turns."""
MOST_GAP: Final = (1 << 16) - 1
TURNS_SHIFT: Final = 40
MOST_TURNS: Final = (1 << 20) - 1
FROM_HOST: Final = 5
"""The link of words that the host streams into a core."""

E_LANDING: Final = 1
E_SINK: Final = 2
E_PRINT: Final = 3
E_LOST: Final = 4
E_FINDING: Final = 5
"""A mistake of the program; :mod:`~openwafer.sdk.fabric.check` packs it, and
:mod:`~openwafer.sdk.fabric.overrun` an operation that went over the end of a variable."""
E_SENT: Final = 6
E_LEFT: Final = 7
E_ENTERED: Final = 8
E_TAKEN: Final = 9
E_FILTERED: Final = 10
E_SWITCH: Final = 11
E_READY: Final = 12
E_UNBLOCKED: Final = 13
E_CHOSEN: Final = 14
E_TASK: Final = 15
E_OWN: Final = 16
E_REQUEST: Final = 17
E_OPERATION: Final = 18
E_OPERATION_END: Final = 19
E_TASK_END: Final = 20
E_COMMAND_END: Final = 21
E_NOWHERE: Final = 22
NO_COLOR: Final = 0
"""Of a wavelet that goes nowhere: it lands on no color of its pair, or its route has no output."""
NO_OUTPUT: Final = 1
CAUSE_CODE: Final = 0
"""Of a task that is ready: what has made it so."""
CAUSE_OPERATION: Final = 1
CAUSE_FIFO: Final = 2
NO_SLOT: Final = -1
CHOSEN_HANDLER: Final = -1
"""In the ring's place of an entry that is chosen: it is a handler."""

# Errors that stop the machine.
ERROR_CONFLICT: Final = 1
ERROR_TRAP: Final = 2
ERROR_BOUNDS: Final = 3
ERROR_UNBOUND_CONTROL: Final = 4
ERROR_NO_QUEUE: Final = 5
ERROR_BAD_OPERAND: Final = 6
ERROR_REGISTER: Final = 7
ERROR_FIFO: Final = 8
ERROR_OVERRUN: Final = 9

# Why the compiled core comes back.
STOP_GOAL: Final = 0
STOP_IDLE: Final = 1
STOP_LIMIT: Final = 2
STOP_DRAIN: Final = 3
STOP_ERROR: Final = 4
STOP_NOT: Final = 5
STOP_STEP: Final = 6

GOAL_CYCLES: Final = 0
GOAL_COMMAND: Final = 1
GOAL_INJECTED: Final = 2
GOAL_COLLECTED: Final = 3

# Sizes of regions.
MAX_PES: Final = 1 << 20
PITCH: Final = MAX_PES + 72
"""Rows from a set of rows to the next one. With a power of 2 all rows of a PE would want the same
places in the caches; so those of 64 bytes lie a page and eight cache lines further."""
MAX_ROWS: Final = 1 << 11
MAILBOX_WORDS: Final = _MAILBOX_WORDS
MAX_IMAGES: Final = 1 << 20
MAX_FILTERS: Final = 1 << 22
MAX_EVENTS: Final = 1 << 24
MAX_TEXT: Final = 1 << 20
MAX_MAPS: Final = 1 << 14
MAP_WORDS: Final = 1 + 6144
"""As :mod:`openwafer.sdk.program.mailbox` has it."""
MAX_SEEN: Final = 1 << 10
SEEN_WORDS: Final = 2
"""Where in the program an overrun was, and when and at which PE."""
MAX_SOURCES: Final = 1 << 21
MAX_SOURCE_WORDS: Final = 1 << 28
REGISTERS: Final = 4096
UNWRITTEN_WORDS: Final = 384
MEMORY_WORDS: Final = 6144 + 8
"""Four 16-bit words of a PE's memory in one of the array. The cache line that is left over spreads
equal addresses of many PEs over the processor's caches."""
CROSSING_WORDS: Final = 2
"""Where a wavelet lands: PE, color and direction as one number; and the wavelet."""
MAX_CROSSINGS: Final = 2 * MAX_ROWS
MAX_CALLS: Final = 16 * MAX_ROWS
PAGE_WORDS: Final = 512
ORDER_BITS: Final = 32
"""PEs in a word while a list of them is sorted."""


@dataclass(frozen=True)
class Shape:
    """Rows of a region: of a length, perhaps several sets of them, one by PE or a number."""

    words: int
    sets: int = 1
    rows: int = PITCH
    is_by_pe: bool = True


@dataclass(frozen=True)
class Region:
    """Where rows lie in the array: sets one behind the other, rows of a set as well."""

    start: int
    shape: Shape

    @property
    def end(self) -> int:
        """What begins behind it."""
        return self.start + self.shape.sets * self.shape.rows * self.shape.words


def _table(rows: int, words: int = 1, *, sets: int = 1) -> Shape:
    """Rows that do not stand for PEs."""
    return Shape(words, sets, rows, is_by_pe=False)


def _placed(start: int, shapes: Mapping[str, Shape]) -> Mapping[str, Region]:
    """One region behind the other."""
    regions = {}
    for name, shape in shapes.items():
        regions[name] = Region(start, shape)
        start = regions[name].end
    return MappingProxyType(regions)


OWN: Final = _placed(
    GLOBAL_WORDS,
    {
        "wheel_list": _table(WHEEL),
        "router_list": _table(MAX_PES),
        "core_list": _table(MAX_PES),
        "moves": _table(8 * MAX_PES),
        "crossings": _table(MAX_CROSSINGS, CROSSING_WORDS, sets=2),
        "calls": _table(MAX_CALLS, sets=2),
        "event": _table(MAX_EVENTS, EVENT_WORDS),
        "text": _table(MAX_TEXT),
        "seen": _table(MAX_SEEN, SEEN_WORDS),
        "order": _table(MAX_PES // ORDER_BITS),
    },
)
"""Regions of which each band has its own."""

WHEEL_LIST: Final = OWN["wheel_list"].start
ROUTER_LIST: Final = OWN["router_list"].start
CORE_LIST: Final = OWN["core_list"].start
MOVES: Final = OWN["moves"].start
CROSSINGS: Final = OWN["crossings"].start
CALLS: Final = OWN["calls"].start
EVENT: Final = OWN["event"].start
TEXT: Final = OWN["text"].start
SEEN: Final = OWN["seen"].start
ORDER: Final = OWN["order"].start
OWN_WORDS: Final = -(-OWN["order"].end // PAGE_WORDS) * PAGE_WORDS

SHARED: Final = _placed(
    OWN_WORDS,
    {
        "router": Shape(ROUTER_WORDS),
        "core": Shape(CORE_WORDS),
        "processor": Shape(PROCESSOR_WORDS),
        "sleep": Shape(SLEEP_WORDS),
        "mailbox": Shape(MAILBOX_WORDS),
        "route": Shape(1, COLORS),
        "channel": Shape(CHANNEL_DEPTH, COLORS),
        "queue": Shape(QUEUE_WORDS, 2 * QUEUES),
        "thread": Shape(THREAD_WORDS, SLOTS),
        "job": Shape(JOB_WORDS, SLOTS),
        "dsr": Shape(DSR_WORDS, DSRS),
        "fifo": Shape(FIFO_WORDS, FIFOS),
        "sink": Shape(SINKS * SINK_WORDS),
        "taken": Shape(1, QUEUES),
        "register": Shape(1, REGISTERS // 4),
        "filter": _table(MAX_FILTERS, FILTER_WORDS),
        "vector": _table(NUM_VECTOR_CODES, VECTOR_WORDS),
        "image": _table(MAX_IMAGES, IMAGE_WORDS),
        "map": _table(MAX_MAPS, MAP_WORDS),
        "source": _table(MAX_SOURCES, SOURCE_WORDS),
        "source_data": _table(MAX_SOURCE_WORDS),
        "account": Shape(ACCOUNT_WORDS, SLOTS),
        "port": Shape(PORT_WORDS, 4),
        "unwritten": Shape(UNWRITTEN_WORDS),
        "memory": Shape(MEMORY_WORDS),
    },
)
"""Regions that bands share. Where a PE has many rows, its first ones lie beside those of other PEs,
so that rows that no PE uses take no memory. The last region ends with the last PE's row."""

ROUTER: Final = SHARED["router"].start
CORE: Final = SHARED["core"].start
PROCESSOR: Final = SHARED["processor"].start
SLEEP: Final = SHARED["sleep"].start
MAILBOX: Final = SHARED["mailbox"].start
ROUTE: Final = SHARED["route"].start
CHANNEL: Final = SHARED["channel"].start
QUEUE: Final = SHARED["queue"].start
"""Input queues, then output queues."""
THREADS: Final = SHARED["thread"].start
JOB: Final = SHARED["job"].start
DSR: Final = SHARED["dsr"].start
FIFO_ROWS: Final = SHARED["fifo"].start
SINK: Final = SHARED["sink"].start
TAKEN: Final = SHARED["taken"].start
"""Wavelets of an input queue that started a task."""
REGISTER: Final = SHARED["register"].start
FILTER: Final = SHARED["filter"].start
VECTOR: Final = SHARED["vector"].start
IMAGE: Final = SHARED["image"].start
MAP: Final = SHARED["map"].start
SOURCE: Final = SHARED["source"].start
SOURCE_DATA: Final = SHARED["source_data"].start
ACCOUNT: Final = SHARED["account"].start
PORT: Final = SHARED["port"].start
"""By direction."""
UNWRITTEN: Final = SHARED["unwritten"].start
"""A bit for each word of memory, in checked runs alone: nothing has written it yet."""
MEMORY_ROWS: Final = SHARED["memory"].start
