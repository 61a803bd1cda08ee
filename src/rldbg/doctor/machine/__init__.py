"""This machine and the nodes of a cluster: probes, what a job will need, fixes."""
