"""The privileged daemon: sets power limits and clocks, and reads CPU energies, for processes without the right.

It imports the standard library, this package and the driver's binding, and nothing else. docs/daemon.md shows how to
install it, docs/security.md what protects it.
"""
