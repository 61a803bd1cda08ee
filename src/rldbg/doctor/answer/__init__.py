"""The verdict in words: the cause with its reason and its fix, other candidates, and where to look next."""
