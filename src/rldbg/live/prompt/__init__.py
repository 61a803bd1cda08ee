"""The pdb prompt in one stopped process, in several at once, or over a crash file."""
