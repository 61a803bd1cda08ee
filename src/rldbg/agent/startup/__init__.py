"""The directory that is put on PYTHONPATH: it holds `sitecustomize` and `rldbg_startup`, and no name of general use."""
