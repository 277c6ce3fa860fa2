"""`calopd experiment`: many runs from one file, with their evaluations, tables and figures."""
