"""Measure how well energy is measured on a machine: `zeus-core doctor --measure`; see README.md beside this file."""
