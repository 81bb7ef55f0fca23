"""`python -m stack` is the same program as `stack`."""

from stack.cli import main

main()
