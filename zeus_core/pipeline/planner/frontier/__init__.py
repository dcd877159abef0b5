"""The time-energy frontier of a pipeline, and the real clocks at a point of it."""
