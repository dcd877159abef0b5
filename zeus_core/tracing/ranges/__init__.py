"""The joules of the ranges of a trace of torch.profiler. Pure."""
