"""The embedded engine: a transformers model with continuous batching, on CPU or GPU."""
