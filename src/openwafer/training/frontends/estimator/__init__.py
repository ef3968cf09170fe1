"""The Estimator style: a model function and an input function, on a streamed loop.

New code takes names from one module: ``openwafer.training.frontends.estimator.cs_estimator``.
"""
