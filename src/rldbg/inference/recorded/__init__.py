"""A recording that answers like an engine: recorded tokens and log probs, by prompt and occurrence."""
