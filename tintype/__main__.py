"""The program's entry point. It installs signal handlers before it imports large modules."""

import atexit
import os
import sys

from tintype.runtime.address_space import end_with, why_not_loaded, why_too_small
from tintype.runtime.parent import end_with_parent
from tintype.runtime.signals import end_before_work, handle_signals, ignore_signals


def main() -> None:
    handle_signals(end_before_work)
    atexit.register(ignore_signals)  # as the first, so that it is called as the last
    if "TORCHELASTIC_RUN_ID" in os.environ:  # a rank ends with the torchrun that started it
        end_with_parent(os.getppid())
    if (words := why_too_small()) and not {"--help", "--version"} & set(sys.argv):
        end_with(words)
    try:
        from tintype.cli import main as run

        run()
    except ImportError as error:
        if words := why_not_loaded(error):
            end_with(words)
        raise


if __name__ == "__main__":
    main()
