"""Reading logs, before any failure is known: lines, times, tracebacks, signs of life, and how a log ends."""
