"""The contract of every builtin: where it may be called, and with which arguments.

A handler is registered under its name by :func:`~openwafer.sdk.csl.sema.sema.builtin`: in this
folder for values, in `machine` for what the machine does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from openwafer.sdk.arch.vector_ops import VECTOR_OPS


class Where(StrEnum):
    """Where a builtin may be called."""

    ANYWHERE = "any"
    LAYOUT = "layout"
    """In the layout block."""
    START = "start"
    """In the comptime block at the top of a file of a PE."""
    CODE = "code"
    """In a function or task, where it runs on the PE."""


@dataclass(frozen=True)
class Signature:
    """One row of the contract.

    Attributes:
        counts: how many arguments it takes; None where the handler counts them itself.
        arguments: their names; a `?` stands behind one that may be left out.
    """

    where: Where
    counts: range | None = None
    arguments: str = ""


_TABLE = """
as                            any     type value
bitcast                       any     type value
ptrcast                       any     type pointer
zeros                         any     type
constants                     any     type value
dimensions                    any     type
rank                          any     type
element_type                  any     type
element_count                 any     type
range                         any     ...
range_start                   any     range
range_stop                    any     range
range_step                    any     range
strcat                        any     ...
strlen                        any     string
get_array                     any     string
get_string_from_byte          any     byte
comptime_assert               any     condition message?
assert                        any     condition message?
comptime_print                any     ...
type_of                       any     value
is_same_type                  any     type type
is_arch                       any     name
is_comptime                   any
fp16                          any
has_field                     any     struct name
field                         any     struct name
concat_structs                any     struct struct
import_comptime_value         any     type path
import_module                 any     name params?

set_rectangle                 layout  width height
set_tile_code                 layout  x y path? params?
set_color_config              layout  x y color config
export_name                   layout  name type is_mutable?
get_rectangle                 any

get_color                     any     number
get_local_task_id             any     number
get_control_task_id           any     number
get_data_task_id              any     number
get_input_queue               any     number
get_output_queue              any     number
get_ut_id                     any     number
get_int                       any     id
get_dsr                       any     type number
get_xdsr                      any     number
get_sr                        any     number

bind_local_task               start   task id
bind_data_task                start   task id
bind_control_task             start   task id
bind_task                     start   task id
bind_rotating_tasks           start   task other id options
set_control_task_table        start   options?
activate                      any     id
block                         any     id
unblock                       any     id
set_teardown_handler          start   function color
set_empty_queue_handler       start   function queue
rpc                           start   id

initialize_queue              start   queue options?
queue_flush                   code    queue
allocate_fifo                 any     array options?
set_fifo_read_length          any     fifo length
set_fifo_write_length         any     fifo length
set_local_color_config        start   color config
get_filter_id                 any     color
set_config                    any     address value ranges?
set_config_unchecked          any     address value ranges?
get_config                    any     address ranges?
get_config_unchecked          any     address ranges?
set_active_prng               code    id
random16                      code

get_dsd                       any     type fields
set_dsd_base_addr             any     dsd pointer
set_dsd_length                any     dsd length
set_dsd_stride                any     dsd stride
increment_dsd_offset          any     dsd offset type
load_to_dsr                   any     dsr dsd options?
load_to_dsr_xdsr              any     dsr xdsr dsd options?
load_to_dsr_xdsr_sr           any     dsr xdsr srs dsd options?
set_dsr_base_addr             code    dsr pointer
map                           any     ...
dfilt                         code    dsd options
addc16                        any     ...
fnormh                        any     ...
fnorms                        any     ...

export_symbol                 start   symbol name?
get_symbol_id                 any     symbol
get_symbol_value              code    type id
get_tensor_ptr                code    id
has_exported_tensors          any

openwafer_stream              any     name color
openwafer_open_stream         any
openwafer_timestamp           any     word
openwafer_timestamp_control   any     action
openwafer_coordinate          any     axis
openwafer_print               any     pointer length
openwafer_seed_random         any     state
openwafer_type_kind           any     type
openwafer_type_size           any     unit type
openwafer_math                any     name value second?
"""
"""`?` stands behind arguments that may be left out, `...` for any that the handler counts."""


def _rows() -> Iterator[tuple[str, Signature]]:
    for line in filter(None, _TABLE.splitlines()):
        name, where, *words = line.split()
        if words == ["..."]:
            yield name, Signature(Where(where))
            continue
        least = sum(not word.endswith("?") for word in words)
        yield name, Signature(Where(where), range(least, len(words) + 1), ", ".join(words))
    # How many sources one has, and what its own reports are, is told beside their table.
    for name in VECTOR_OPS:
        yield name, Signature(Where.CODE)


SIGNATURES: Final[Mapping[str, Signature]] = MappingProxyType(dict(_rows()))
"""The contract of every builtin, by its name without the `@`."""
