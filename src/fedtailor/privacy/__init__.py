"""What leaves a client, by name: the rule for each entry, and what the rules do."""
