"""Measures what leaks: attacks on one's own simulated run, each beside what guessing would reach."""
