"""Leases: who changes which device, what was in force before, and the restoring of it when the holder ends.

Everything here loads fast and small, as the guardian of each training process imports it.
"""
