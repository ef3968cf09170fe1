"""Every kind of construct, and all builtins; importing this registers them all."""

from openwafer.sdk.csl.sema import (
    access,
    arith,
    calls,
    control,
    literals,
    loops,
    modules,
    statements,
    switches,
    typeexprs,
)
from openwafer.sdk.csl.sema.builtins import arrays, casts, json_values, machine, queries, strings
from openwafer.sdk.csl.sema.builtins import calls as builtin_calls

EVALUATORS = (
    *(access, arith, calls, control, literals, loops, modules, statements, switches, typeexprs),
    *(arrays, builtin_calls, casts, json_values, machine, queries, strings),
)
