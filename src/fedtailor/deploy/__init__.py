"""Real federations: Flower's programs carry the messages, FedTailor's server and sites are the two ends of an engine's call."""
