"""The program `mdgraph`, also as `python -m mdgraph`."""

import signal


def main() -> None:
    """Runs the command line; Ctrl-C ends it without a traceback from the very first moment."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command catches its signals
    from mdgraph.cli import main as run

    run()


if __name__ == "__main__":
    main()
