"""From all evidence to one root cause: what was outlived, what only repeats another failure, what came first."""
