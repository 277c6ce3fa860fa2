"""A whole run on one machine: local services, their supervisor, the embedded Redis server, the terminal display."""
