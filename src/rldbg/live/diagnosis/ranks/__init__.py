"""Ranks that wait for each other: in collectives, in process groups, on the GPU; and the stacks of many at once."""
