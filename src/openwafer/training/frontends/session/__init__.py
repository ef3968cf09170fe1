"""The session style: what scripts of 2021 to 2023 call ``cbtorch`` and ``cm``, on a streamed loop.

New code takes a module by its name: ``import openwafer.training.frontends.session.cbtorch``.
"""
