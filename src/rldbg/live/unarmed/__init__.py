"""Jobs without agents, inspected from outside: processes of this host, of other hosts, of SLURM jobs, of Ray
clusters."""
