"""Threads, locks over forks, child processes, and the registry of hardware to restore when the process ends."""
