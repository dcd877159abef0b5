"""The search during a run: it spends a part of the steps on trials, and keeps a bound on the whole run. Pure."""
