"""Jobs that nobody armed, seen from outside: processes of this host, of other hosts, of SLURM jobs, of Ray clusters."""
