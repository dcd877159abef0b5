"""Traces of a training in time, in the JSON of Chrome and Perfetto: activities, steps, power, settings and why."""
