"""Reads a file of weights as a command that starts from it does, without the rest of that command: `python -m attacks.reading FILE`."""

import sys

from jaxbed.models import torch_files

if __name__ == "__main__":
    try:
        torch_files.read(sys.argv[1])
    except (ValueError, OSError) as error:
        print(f"jaxbed: {error}", file=sys.stderr)
        sys.exit(2)
