"""``python -m noisescale``."""

from noisescale.cli import main

main()
