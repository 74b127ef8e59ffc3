"""The Python interface: `run`, `compare` and `load`. The command line calls the same functions."""
