"""The present style: what scripts of today call ``cstorch``, on a streamed loop.

New code takes the module by its name: ``import openwafer.training.frontends.present.cstorch``.
"""
