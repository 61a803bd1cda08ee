"""Who would end a wait: what other threads, tasks and processes hold, keep, poll, skip and work through."""
