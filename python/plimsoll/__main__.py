"""`python -m plimsoll …` is the command `plimsoll …`."""

import os
import sys

from .command import executable


def main() -> None:
    """Becomes the command."""
    program = executable()
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
