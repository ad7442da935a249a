"""Why is there no profile?"""

from __future__ import annotations


class CalibrationError(Exception):
    """The load test cannot go on; its text says what is wrong and what to do. `exit_code`: of the command."""

    exit_code = 3


class ServerError(CalibrationError):
    """The server is not there, is none of vLLM's kind, or fails."""


class TooSlowError(CalibrationError):
    """The server does not keep the target however few requests come."""

    exit_code = 1


class ClientError(CalibrationError):
    """The client could not send in time what it was to send: what it measured would be of itself."""

    exit_code = 4


class OptionError(CalibrationError):
    """What an option names cannot be used, whatever the server says."""

    exit_code = 2


class OtherParametersError(CalibrationError):
    """The steps that are kept were measured with other parameters."""

    exit_code = 2
