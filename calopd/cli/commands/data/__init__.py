"""Problem sets: clean them, solve them, choose wrong answers and unrelated solutions."""

HELP = "problem sets: clean, solve, choose negatives"
