"""What do several commands let one choose?"""

from enum import StrEnum


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


LOG_FORMAT_HELP = "text for people, or json: an object a line (docs/logs.md)."
