"""How late a sensor of the power can be. Pure, and without numpy, for programs that measure windows alone."""

SENSOR_DELAY_SECONDS = 0.12
"""How late a sensor can be. The slowest of published ones is refreshed every 0.1 s (Yang et al., "Part-time Power
Measurements: nvidia-smi's Lack of Attention", SC24). The rest is for the jitter of that, and for power that lags."""

CANCELLING = 0.5
"""Times the root of the sum of squares of what each change can be late by, from 0 to the longest. In 2,100 simulated
loads (refreshes of 10 to 100 ms, lags up to 20 ms, samples every 50 and 67 ms) 95 % of the errors were below 0.2 to 0.3
of that root where parts took 0.1 to 3 s, and below 0.6 where 50 ms; 0.7 where 20 ms, which what is unseen covers."""
