"""Layouts written in Python: regions of PEs, ports, connections and streams of the host.

A layout becomes CSL, so that it means what the same layout block would: see `csl_text`.
"""
