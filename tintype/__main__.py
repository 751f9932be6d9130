"""The program: signals are handled before anything large is imported."""

import atexit

from tintype.signals import end_before_work, handle_signals, ignore_signals


def main() -> None:
    handle_signals(end_before_work)
    atexit.register(ignore_signals)  # as the first, so that it is called as the last
    from tintype.cli import main as run

    run()


if __name__ == "__main__":
    main()
