"""``python -m wmmagen``."""

from wmmagen.cli import main

main()
