"""``python -m openwafer``, as launchers start it."""

from openwafer.cli import main

main()
