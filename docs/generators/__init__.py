"""Pages of docs/ that are generated from the code, one file each."""
