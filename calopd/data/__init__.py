"""Problems on disk, how they are prepared, and whether an answer is correct."""
