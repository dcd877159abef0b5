"""Measure how well energy is measured on the machine at hand: `zeus-core selfcheck`; see README.md beside this file."""
