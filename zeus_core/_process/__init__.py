"""Threads, locks, child processes, and what is restored when the process ends."""
