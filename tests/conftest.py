"""What holds for all tests."""

import signal

from hypothesis import settings

# How long an example takes says what else the machine does.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Whoever starts the tests in the background has them ignore Ctrl-C, and so the programs that they
# start and press Ctrl-C for.
signal.signal(signal.SIGINT, signal.default_int_handler)
