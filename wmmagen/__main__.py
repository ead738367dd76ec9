"""``python -m wmmagen``, and the console script."""

import sys

#: The exit status of an interrupted command: 128 and the signal's number.
_INTERRUPTED = 130


def main() -> None:
    """Carry out the command line; an interrupt before it is read ends in a word, too."""
    try:
        from wmmagen.cli import main as carry_out

        carry_out()
    except KeyboardInterrupt:
        print("interrupted; nothing was begun", file=sys.stderr)
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
