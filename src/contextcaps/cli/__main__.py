"""python -m contextcaps.cli."""

from contextcaps.cli import main

main()
