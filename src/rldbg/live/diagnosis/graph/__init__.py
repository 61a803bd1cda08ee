"""Who waits for whom among threads, tasks and processes: the wait graph, its nodes and edges, and its words."""
