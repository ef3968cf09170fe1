"""What a run may be asked to do beside plain training: each method brings its keys and its hooks.

A method is a subclass of :class:`~openwafer.training.methods.seam.Method`, and its keys are a
subclass of the run's config that adds fields and answers :meth:`methods`. The trunk calls the
hooks and knows no method by name; :mod:`openwafer.training.methods.registered` lists them.
"""

# The door of a session joins all methods, so that a method imported before it would meet itself.
import openwafer.training.session  # noqa: F401
