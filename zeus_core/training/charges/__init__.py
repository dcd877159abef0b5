"""Emissions and cost of the energy of a run."""
