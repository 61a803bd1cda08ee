"""The file formats of recordings: torch's .pt, safetensors, jsonl, and rldbg's own. numpy only, never torch.

A reader either returns what the file says or raises IncompleteDataError with the file's name, the reason and a hint.
"""
