"""The program: signals are handled before anything large is imported."""

from tintype.signals import end_before_work, handle_signals


def main() -> None:
    handle_signals(end_before_work)
    from tintype.cli import main as run

    run()


if __name__ == "__main__":
    main()
