"""extproc routes LLM requests to a fleet of vLLM servers, as an external processor of Envoy."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("vllm-extproc")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"
