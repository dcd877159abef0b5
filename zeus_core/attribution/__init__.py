"""The division of energy between the updates of a counter among activities. Pure; docs/attribution.md has the theory.

`updates` finds the moments at which a counter is updated, `read_plan` when to read it, `power_sum` takes its place
where there is none. `timeline` knows what ran when. `columns` and `regression` estimate the power of each class of
time from the energy between updates, and `expected_energy` the energy of each part; `class_energy` divides what was
counted, `settled_energy` bridges what a fault hides, and `divided_energy` adds what is not settled yet.
`sensor_comparison` finds out whether the power agrees with the counter.
"""
