"""What the source says about the line where a thread is: its calls, its names, and the ways to it and out of it."""
