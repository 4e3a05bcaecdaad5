"""python -m contextcaps."""

from contextcaps.cli import main

main()
