"""The wire protocols, each a thin table of routes over one backend."""
