"""One folder a process. Services import `calopd`, never one another."""
