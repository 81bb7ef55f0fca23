"""The stage runner, the verdict, the report."""
