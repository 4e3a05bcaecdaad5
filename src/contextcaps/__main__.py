"""The command contextcaps, also as python -m contextcaps."""

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback also while it is being imported."""
    try:
        from contextcaps.cli import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
