"""Literal texts and regular expressions of the knowledge, and how they are found in gigabytes of raw bytes."""
