"""Runs whose systems have a stage of the model each."""
