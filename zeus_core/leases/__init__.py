"""Leases: who changes which device, what was in force before, and the restoring of it when the holder ends.

Everything here loads fast and small, as the guardian of each training process imports it, and the daemon restores
with it before it loads anything else: no `dataclasses`, and `typing` for type checkers alone (`TYPE_CHECKING`).
"""
