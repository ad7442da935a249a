"""What does the operator want? Typed settings from an envoy.yaml or an own YAML, and what is wrong with them."""

from extproc.config.load import Loaded, load, read_settings
from extproc.config.problems import ConfigError, Problem, Severity
from extproc.config.settings import Settings

__all__ = ["ConfigError", "Loaded", "Problem", "Settings", "Severity", "load", "read_settings"]
