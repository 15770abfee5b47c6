"""`python -m arno` is `arno`."""

from .cli import main

main()
