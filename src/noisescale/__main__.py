"""``python -m noisescale``, and the command ``noisescale``."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; Ctrl-C while it is being imported ends it with a word as well."""
    try:
        from noisescale.cli import main as run
    except KeyboardInterrupt:
        print("noisescale: interrupted.", file=sys.stderr)
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
