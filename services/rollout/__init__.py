"""The student writes: claims tickets, samples, has each response scored the moment it is complete, commits it."""
