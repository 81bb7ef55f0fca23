"""The checks, the fault catalogue and the reports."""
