"""Real federations: Flower's programs carry the messages, FedTailor's server and sites are the two ends of an engine's call."""

PORT = 9092  # of the server, unless its settings say another
HERE = "127.0.0.1"  # this machine and no other
