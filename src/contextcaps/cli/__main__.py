"""python -m contextcaps.cli."""

from contextcaps.cli import main

if __name__ == "__main__":
    main()
