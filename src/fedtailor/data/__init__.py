"""Data sets, how they are dealt to clients, and the federation that results."""
