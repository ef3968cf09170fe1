"""Builtins that touch the machine: ids, descriptors, vector operations, tasks, queues, routes."""

from openwafer.sdk.csl.sema.builtins.machine import (
    descriptor_changes,
    descriptors,
    dsrs,
    host_symbols,
    ids,
    layout_calls,
    library,
    mapping,
    queues,
    registers,
    routes,
    tasks,
    tensor_access,
    vector,
)

__all__ = [
    "descriptor_changes",
    "descriptors",
    "dsrs",
    "host_symbols",
    "ids",
    "layout_calls",
    "library",
    "mapping",
    "queues",
    "registers",
    "routes",
    "tasks",
    "tensor_access",
    "vector",
]
