"""Ray in the wait graph: tasks, actors, queues and resources, as Ray itself lists them."""
