"""The processes of a host beside the one that is looked at: their files, sockets and threads, and how they ended."""
