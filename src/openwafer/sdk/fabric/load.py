"""A compiled program becomes the state of a machine that has not run yet."""

from collections.abc import Mapping, Sequence

import numpy as np

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import (
    GENERATIONS,
    NUM_COLORS,
    NUM_DSRS,
    NUM_TASK_IDS,
    Arch,
)
from openwafer.sdk.arch.timing import Timing
from openwafer.sdk.arch.vector_ops import VECTOR_OPS_BY_CODE, element_words
from openwafer.sdk.fabric import channel, engine, operand, route
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.state import Array, Tables, allocate, band_of
from openwafer.sdk.fabric.variables import fill_maps
from openwafer.sdk.program import descriptor as dsd
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import DsrLoad, Image, TaskKind
from openwafer.sdk.program.mailbox import DsrFile
from openwafer.sdk.program.program import Program
from openwafer.sdk.program.routing import ColorConfig, Direction, Filter, FilterKind

_FILTER_KINDS = {
    FilterKind.COUNTER: w.FILTER_COUNTER,
    FilterKind.SPARSE_COUNTER: w.FILTER_SPARSE,
    FilterKind.RANGE: w.FILTER_RANGE,
}
_FIRST_RANDOM_STATE = 0xDEADBEEF
_FIFO_FILE = DsrFile.SOURCE1
_WRITES_REGISTERS = "write_register"
"""What the code of an image has that changes routes."""
_BLOCK_WORDS = 512
"""Memory that begins with zeros is left alone in blocks of this size."""


def load(program: Program, num_bands: int = 1) -> list[Array]:
    """Allocate and fill the state of a program, as an array for each band of columns of PEs."""
    kinds, kind_of = _kinds(program)
    states = allocate(program.width, program.height, num_bands, len(program.images))
    tables = Tables(states[0])
    for state in states:
        _fill_globals(state, program)
    _fill_vector_ops(tables, program.arch)
    for number, image in enumerate(program.images):
        _check(image)
        _fill_tables(tables.image[number], image)
        _fill_pes(tables, program, number)
    fill_maps(states, program)
    num_filters = _fill_routers(tables, program, kinds, kind_of)
    for state in states:
        state[w.G_FILTERS] = num_filters
    flags = tables.router[:, w.R_FLAGS].reshape(program.width, program.height)
    flags[0] |= 1 << (w.EDGE_SHIFT + Direction.WEST)
    flags[-1] |= 1 << (w.EDGE_SHIFT + Direction.EAST)
    flags[:, -1] |= 1 << (w.EDGE_SHIFT + Direction.SOUTH)
    flags[:, 0] |= 1 << (w.EDGE_SHIFT + Direction.NORTH)
    _write_registers(states, program)
    return states


def _write_registers(states: Sequence[Array], program: Program) -> None:
    for number, image in enumerate(program.images):
        for pe in np.flatnonzero(program.images_by_number == number) if image.registers else ():
            address = int(states[band_of(states, int(pe))][w.G_ADDRESS])
            for register in image.registers:
                engine.write_register(address, int(pe), register.address, register.value)


def _check(image: Image) -> None:
    if len(image.fifos) > w.FIFOS:
        raise error(
            "fabric-too-many-fifos",
            f"{image.name} has {len(image.fifos)} FIFOs, a PE has {w.FIFOS}",
            help="let operations share FIFOs, or leave what waits in arrays",
        )


def _kinds(program: Program) -> tuple[Array, Array]:
    """Pairs of image and set of routes, and the number of each PE's pair."""
    pairs = np.stack([program.images_by_number, program.routes_of.ravel(order="F")], axis=1)
    kinds, kind_of = np.unique(pairs.astype(np.int64), axis=0, return_inverse=True)
    return kinds, np.asarray(kind_of, np.int64).ravel()


def _colors_of(program: Program, image: int, routes: int) -> list[tuple[int, ColorConfig]]:
    own = program.images[image].colors if image >= 0 else ()
    given = program.routes[routes] if routes >= 0 else ()
    # Code names the filters of its own colors by number, so they come first.
    return [*own, *given]


def _fill_globals(state: Array, program: Program) -> None:
    g, generation = state, GENERATIONS[program.arch]
    _fill_timing(g, generation.timing)
    g[w.G_IS_WSE3] = program.arch is Arch.WSE3
    g[w.G_SWITCHED] = _switched_colors(program)
    for queue, depth in enumerate(generation.input_queue_words):
        g[w.G_DEPTHS + queue] = depth
    for queue, depth in enumerate(generation.output_queue_words):
        g[w.G_DEPTHS + w.QUEUES + queue] = depth
    to_host = [color for name, color in program.streams if name.startswith("MEMCPYD2H")]
    for slot, color in enumerate(dict.fromkeys(to_host)):
        g[w.G_SINK_COLORS] |= 1 << color
        g[w.G_SINK_SLOT + color] = slot


def _switched_colors(program: Program) -> int:
    """A mask: all colors where code writes configuration registers."""
    if any(image.registers or _WRITES_REGISTERS in image.code for image in program.images):
        return (1 << NUM_COLORS) - 1
    sets = (*program.routes, *(image.colors for image in program.images))
    configs = [pair for colors in sets for pair in colors]
    # A swap takes the commands of a color to the other one of its pair.
    is_swapping = any(config.swap_x or config.swap_y for _, config in configs)
    mask = 0
    for color, config in configs:
        if config.switches is not None and config.switches.positions:
            mask |= 1 << color | is_swapping << (color ^ 1)
    return mask


def _fill_timing(g: Array, timing: Timing) -> None:
    g[w.G_HOP] = timing.hop_cycles
    g[w.G_RAMP_IN] = timing.arrival_cycles - timing.hop_cycles
    g[w.G_RAMP_OUT] = timing.ramp_cycles
    g[w.G_PLACE_KNOWN] = timing.place_known_cycles
    g[w.G_TASK] = timing.task_cycles
    g[w.G_SWITCH] = timing.switch_cycles
    g[w.G_WAVELET_SWITCH] = timing.wavelet_switch_cycles
    g[w.G_COMMAND] = timing.command_cycles
    g[w.G_BEAT] = timing.beat_cycles
    g[w.G_DRAIN] = timing.drain_cycles
    g[w.G_LOAD] = timing.load_latency
    g[w.G_FLOAT] = timing.float_latency
    g[w.G_ROW_WORDS] = timing.row_words
    g[w.G_STRIDE_WIDTHS] = timing.stride_widths


def _fill_vector_ops(tables: Tables, arch: Arch) -> None:
    for code, op in VECTOR_OPS_BY_CODE.items():
        row = tables.vector[code]
        row[w.V_SOURCES] = len(op.sources)
        row[w.V_DESTINATION_WORDS] = element_words(op.destination)
        for number, source in enumerate(op.sources):
            row[w.V_SOURCE_WORDS + number] = element_words(source)
        row[w.V_WIDTH] = op.rates[arch]


def _fill_tables(row: Array, image: Image) -> None:
    tables = {TaskKind.LOCAL: w.I_LOCAL, TaskKind.DATA: w.I_DATA, TaskKind.CONTROL: w.I_CONTROL}
    for task in image.tasks:
        row[tables[task.kind] + task.task_id] = task.entry + 1
    if not image.has_separate_control_table:
        # Control wavelets may name any task of the one table that all ids share.
        for task_id in range(NUM_TASK_IDS):
            shared = row[w.I_LOCAL + task_id] or row[w.I_DATA + task_id]
            row[w.I_CONTROL + task_id] = row[w.I_CONTROL + task_id] or shared
    for color, entry in image.teardown_handlers:
        row[w.I_TEARDOWN + color] = entry + 1
    for queue, entry in image.empty_queue_handlers:
        row[w.I_FLUSH + queue] = entry + 1
    for binding in image.queues:
        if binding.is_input and binding.priority > 0:
            row[w.I_PRIORITIES] |= binding.priority << (2 * binding.queue)
    for queue, offset in image.control_offsets:
        row[w.I_OFFSETS + queue] = offset
    for number, rotation in enumerate(image.rotations):
        first = w.I_ROTATION + number * w.ROTATION_WORDS
        row[first : first + 3] = rotation.queue + 1, rotation.entry, rotation.limit


def _fill_pes(tables: Tables, program: Program, number: int) -> None:
    """Fill core, mailbox and memory of all PEs of an image."""
    image = program.images[number]
    pes = np.flatnonzero(program.images_by_number == number)
    if not pes.size:
        return
    data = np.frombuffer(image.data, np.uint16)
    for start in range(0, data.size, _BLOCK_WORDS):
        block = data[start : start + _BLOCK_WORDS]
        if block.any():
            tables.memory[pes, start : start + block.size] = block
    core = np.zeros(w.CORE_WORDS, np.int64)
    processor = np.zeros(w.PROCESSOR_WORDS, np.int64)
    processor[w.P_IMAGE] = number
    core[w.C_THREADS] = image.start.blocked_queues >> w.QUEUES << w.HELD_SHIFT
    for pair, rotation in enumerate(image.rotations):
        processor[w.P_ROTATED + pair] = rotation.first
    _bind_queues(core, processor, image)
    _mark_starts(core, image, program.arch)
    tables.core[pes], tables.processor[pes] = core, processor
    _fill_mailboxes(tables, program, image, pes)
    _fill_fifos(tables, image, pes)
    for dsr in image.dsrs:
        row = _dsr_row(dsr)
        tables.dsr[dsr.file * 16 + dsr.number, pes] = row


def _bind_queues(core: Array, processor: Array, image: Image) -> None:
    """Bind queues as the image says; wavelets of other colors wait in the router."""
    queue_of = core[w.C_QUEUE_OF :].view(np.uint8)[:NUM_COLORS]
    out_colors = processor[w.P_OUT_COLOR :].view(np.uint8)
    for binding in image.queues:
        if binding.is_input:
            queue_of[binding.color] = binding.queue + 1
        elif not binding.is_chosen:
            out_colors[binding.queue] = binding.color + 1


def _mark_starts(core: Array, image: Image, arch: Arch) -> None:
    """Mark the colors whose wavelets may start a data task; WSE-3 names these by queue."""
    queue_of = core[w.C_QUEUE_OF :].view(np.uint8)[:NUM_COLORS]
    for task in image.tasks:
        if task.kind is TaskKind.DATA:
            own = queue_of == task.task_id + 1 if arch is Arch.WSE3 else task.task_id
            queue_of[own] |= w.START_BIT


def _fill_mailboxes(tables: Tables, program: Program, image: Image, pes: Array) -> None:
    row = np.zeros(mb.MAILBOX_WORDS, np.int64)
    row[mb.ACTIVE], row[mb.BLOCKED] = image.start.active, image.start.blocked
    row[mb.BLOCKED_QUEUES] = image.start.blocked_queues
    row[mb.STREAM_OPEN] = 1
    row[mb.RANDOM] = _FIRST_RANDOM_STATE
    tables.mailbox[pes] = row
    x, y = np.divmod(pes, program.height)
    across = x | (x + program.offset[0]) << mb.FABRIC_SHIFT
    down = y | (y + program.offset[1]) << mb.FABRIC_SHIFT
    tables.mailbox[pes, mb.COORDINATES] = across | down << mb.Y_SHIFT
    if program.parameters.size:
        num_bytes = 8 * program.parameters.shape[-1]
        tables.mailbox[pes, mb.PARAMS] = (
            program.parameters.ctypes.data + (y * program.width + x) * num_bytes
        )


def _fill_fifos(tables: Tables, image: Image, pes: Array) -> None:
    for number, fifo in enumerate(image.fifos):
        row = np.zeros(w.FIFO_WORDS, np.int64)
        row[w.F_ADDRESS], row[w.F_WORDS] = fifo.address, fifo.element_words
        row[w.F_ELEMENTS] = fifo.num_words // fifo.element_words
        row[w.F_ACTIVATE_PUSH], row[w.F_ACTIVATE_POP] = fifo.activate_push, fifo.activate_pop
        row[w.F_FULL_ACTION], row[w.F_EMPTY_ACTION] = fifo.full_action, fifo.empty_action
        row[w.F_PRIORITY] = fifo.priority
        tables.fifo[number, pes] = row
        for file, register in ((DsrFile.DESTINATION, fifo.destination), (_FIFO_FILE, fifo.source)):
            if register >= 0:
                tables.dsr[int(file) * NUM_DSRS + register, pes] = _fifo_dsr_row(number)


def _fifo_dsr_row(fifo: int) -> Array:
    """A register that stands for a FIFO, without options."""
    row = np.zeros(w.DSR_WORDS, np.int64)
    row[w.O_KIND], row[w.O_QUEUE] = w.FIFO, fifo
    row[w.D_OPTIONS + 1 : w.D_OPTIONS + 7] = -1
    return row


def _dsr_row(dsr: DsrLoad) -> Array:
    packed = np.zeros(dsd.DSD4_WORDS, np.uint16)
    packed[: len(dsr.words)] = np.array(dsr.words, np.int64).astype(np.uint16)
    cells = [*packed.view(np.int64).tolist(), *[0] * w.OPERAND_WORDS]
    first = len(cells) - w.OPERAND_WORDS
    operand.decode_words(cells, 0, first)
    row = np.zeros(w.DSR_WORDS, np.int64)
    row[: w.OPERAND_WORDS] = cells[first:]
    row[w.D_OPTIONS : w.D_OPTIONS + 7] = (
        *(dsr.options, dsr.activate, dsr.unblock, dsr.control_activate),
        *(dsr.control_unblock, dsr.microthread, dsr.priority),
    )
    return row


def _fill_routers(tables: Tables, program: Program, kinds: Array, kind_of: Array) -> int:
    """Fill the routers of each pair of image and routes; gives the number of filters.

    Filters count, so each PE has its own.
    """
    first_filter = 0
    for number, (image, routes) in enumerate(kinds.tolist()):
        pes = np.flatnonzero(kind_of == number)
        colors = _colors_of(program, image, routes)
        filters = [(color, config.filter) for color, config in colors if config.filter is not None]
        words = _route_words(colors, [color for color, _ in filters])
        tables.router[pes] = _router_row(colors, words)
        for color, word in words.items():
            tables.route[color, pes] = word
        if not filters:
            continue
        first_of = first_filter + len(filters) * np.arange(pes.size)
        tables.router[pes, w.R_FLAGS] |= first_of << w.FILTERS_SHIFT | w.FILTER_BIT
        rows = np.stack([_filter_row(given) for _, given in filters])
        after = first_filter + pes.size * len(filters)
        tables.filter[first_filter:after] = np.tile(rows, (pes.size, 1))
        first_filter = after
    return first_filter


def _route_words(
    colors: Sequence[tuple[int, ColorConfig]], with_filter: list[int]
) -> dict[int, int]:
    return {
        color: route.pack_route(config, with_filter.index(color) if color in with_filter else -1)
        for color, config in colors
    }


def _router_row(colors: Sequence[tuple[int, ColorConfig]], words: Mapping[int, int]) -> Array:
    row = np.zeros(w.ROUTER_WORDS, np.int64)
    if any(config.swap_x or config.swap_y for _, config in colors):
        row[w.R_FLAGS] = w.SWAP_BIT
    for color, word in words.items():
        channel.fill_takes(row, color, word)
    return row


def _filter_row(given: Filter) -> Array:
    row = np.zeros(w.FILTER_WORDS, np.int64)
    row[w.L_KIND] = _FILTER_KINDS[given.kind]
    row[w.L_COUNT_DATA], row[w.L_COUNT_CONTROL] = given.count_data, given.count_control
    row[w.L_COUNTER], row[w.L_LIMIT1] = given.init_counter, given.limit1
    row[w.L_LIMIT2], row[w.L_MAX] = given.limit2, given.max_counter
    row[w.L_FILTER_CONTROL] = given.filter_control
    row[w.L_MIN_INDEX], row[w.L_MAX_INDEX] = given.min_index, given.max_index
    return row
