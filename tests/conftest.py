"""What holds for all tests."""

from hypothesis import settings

# How long an example takes says what else the machine does.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
