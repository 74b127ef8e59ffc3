"""The engine of real federations: clients are sites elsewhere, and Flower carries the messages."""
