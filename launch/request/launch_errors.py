"""The error of the launch commands."""

from entry_point.contract.user_error import UserError


class LaunchError(UserError):
    """A job, image or upload that cannot be started. One line for each problem."""
