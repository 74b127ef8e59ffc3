"""What one calls in Python: `run`, `compare` and `load`. The command line calls the same."""
