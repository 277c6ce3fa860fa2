"""Work with a teacher's engine without a server."""
