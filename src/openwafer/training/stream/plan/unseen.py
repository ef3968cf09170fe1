"""Planning runs the model's code, and leaves no trace of it in the user's program."""

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from torch.nn.modules import module as torch_module

from openwafer.training.stream.execute.snapshot import reached_from
from openwafer.training.stream.execute.thread_state import keeping_random_state
from openwafer.training.stream.plan.dry_run import Workload


@contextmanager
def unseen(workload: Workload) -> Iterator[None]:
    """Context after which everything is as before that the step's code can reach.

    The model itself is copied to be run, and code that names it all the same leaves no gradients in
    it. Globals, closures, attributes of classes and objects that
    the code names are put back, random generators too; what is printed or logged as information
    is dropped, and breakpoints are passed over. What leaves the process, into a file or
    a connection, is out of reach.
    """
    hooks = {name: held for name, held in vars(torch_module).items() if "_hooks" in name}
    before = reached_from(
        [
            *workload.model.named_modules(),
            ("loss", workload.loss_of),
            ("batch", list(workload.batches)),
            ("hooks", hooks),
        ],
        passes_buffers_over=True,
    )
    gradients = [(parameter, parameter.grad) for parameter in workload.model.parameters()]
    was_disabled, breakpoints = logging.root.manager.disable, sys.breakpointhook
    logging.disable(max(was_disabled, logging.INFO))
    sys.breakpointhook = lambda *args, **kwargs: None
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        with keeping_random_state(), redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(was_disabled)
        sys.breakpointhook = breakpoints
        for parameter, gradient in gradients:
            parameter.grad = gradient
        before.put_back()
