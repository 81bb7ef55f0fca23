"""`python -m stack` is the same program as `stack`."""

from stack.cli import main

if __name__ == "__main__":
    main()
