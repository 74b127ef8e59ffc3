"""The numbers of finished runs: read back, grouped, tested and ranked."""
