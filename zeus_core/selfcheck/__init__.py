"""Measure how well energy is measured on the machine at hand: `zeus-core selfcheck`.

Each module with a `check_*` function is one part of the report. `_program.py` runs them in order.
"""
