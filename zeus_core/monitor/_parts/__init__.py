"""The energy of the parts of a run, from reads of a counter now and then. All of it is pure.

`_update_grid` and `_counter_phase` find the moments at which the counter was updated, `_read_plan` when to read it.
`_timeline` tells which parts lie between two updates. `_class_energy` divides the energy between them: `_power_filter`
follows what each part draws of its own (`_power_state`), by the habits of some kinds of loads (`_power_kinds`), and
`_power_model` learns what each class draws, by a regression (`_power_columns`, `_power_regression`) on what the filter
did not expect; `_class_sums` is what else is kept of each class. The filter tells what a counter has lost, or hides in
one sum, too, with what `_power_samples` tell of that. `_divided_energy` puts all energy together: what is settled and
`_unsettled_time`. `_power_sum` takes the place of the counter where there is none.
"""
