"""The way to a cluster from where you sit: which node is the head, what it listens on, and a port that leads there."""
