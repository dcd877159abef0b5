"""What the energy of a run emitted and cost."""
