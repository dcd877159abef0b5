"""Settings of GPUs: the kinds of them, who changes one, and how it is always restored.

`kinds` says what can be set: the power limit, the SM clock. A *knob* turns a kind of setting of some GPUs, by a *lease*
on each: it writes the original into the *ledger* and to the *guardian* of the process, and checks that nobody else has
set another value. The modules that restoring needs load fast and small, as the guardian of each training process
imports them, and the daemon restores with them before it loads anything else: named tuples in place of `dataclasses`,
which take 10 ms to load.
"""
