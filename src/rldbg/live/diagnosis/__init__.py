"""Why a job hangs: stacks of all ranks, flight-recorder dumps, and who waits for whom."""
