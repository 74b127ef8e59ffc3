"""Data sets, partitions that deal them to clients, and the federation that results."""
