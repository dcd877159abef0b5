"""Power limits, clocks and CPU energies through the privileged daemon: its protocol and its client."""
