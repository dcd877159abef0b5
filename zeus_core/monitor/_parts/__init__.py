"""The energy of the parts of a run, from reads of a counter now and then. All of it is pure.

`_update_grid` and `_counter_phase` find the moments at which the counter was updated, `_read_plan` when to read it.
`_timeline` tells which parts lie between two updates. `_class_energy` learns what each class of parts draws, by a
regression (`_power_columns`, `_power_regression`), from what lies inside parts and from `_mixed_interval`s of several;
`_class_sums` is what it keeps of each class. `_divided_energy` divides all energy with it, and bridges what was not
counted by what was drawn near it (`_near_power`, `_model_error`). `_power_sum` takes the place of the counter where
there is none.
"""
