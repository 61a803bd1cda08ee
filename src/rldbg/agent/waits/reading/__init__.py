"""What the kernel and the memory of a process hold, read without running or stopping anything of it."""
