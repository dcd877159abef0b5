"""Settings of GPUs: the kinds of them, who changes one, and how it is always restored.

`kinds` says what can be set: the power limit, the SM clock. A *knob* turns a kind of setting of some GPUs, by a *lease*
on each: it writes the original into the *ledger* and to the *guardian* of the process, and checks that nobody else has
set another value. Guardian, next start, daemon and `zeus-core restore` restore by one rule, on the same GPUs.
"""
