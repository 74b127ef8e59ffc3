"""The pages of the site that are generated: method cards, commands, options, what leaves a client."""
