"""python -m contextcaps."""

from contextcaps.cli import main

if __name__ == "__main__":
    main()
