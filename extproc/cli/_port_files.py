"""Can the files be used that the service's ports need: certificates, keys, CAs, the token? Told with file and line."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.admin.guard import Guard
from extproc.admin.token import TokenError
from extproc.config.load import Loaded
from extproc.config.problems import Problem, Severity
from extproc.config.settings import Settings, TlsSettings
from extproc.tls import Certificates, TlsFileError

CODE = "port-file"
_READABLE = "write the path that it has where the service runs; its user must be able to read it"


def port_problems(loaded: Loaded, settings: Settings) -> Iterator[Problem]:
    """What would keep the ports from opening. Files are read; nothing is opened."""
    for section, tls in (("grpc", settings.grpc.tls), ("admin", settings.admin.tls)):
        if tls is not None:
            yield from _of_tls(loaded, section, tls)
    try:
        Guard.of(settings.admin)
    except TokenError as error:
        message = str(error)
        named = [field for field in ("token_file", "protect") if message.startswith(f"admin.{field}: ")]
        yield _problem(loaded, ("admin", *named), message, "")


def _of_tls(loaded: Loaded, section: str, tls: TlsSettings) -> Iterator[Problem]:
    try:
        Certificates(tls, f"{section}.tls", alpn=["h2"])
    except TlsFileError as error:
        path = (section, "tls", *((error.field,) if error.field else ()))
        yield _problem(loaded, path, error.message, _READABLE if error.unreadable else "")


def _problem(loaded: Loaded, path: tuple[str, ...], message: str, cure: str) -> Problem:
    above = () if loaded.kind == "own" else ("node", "metadata", "extproc")
    node = loaded.tree.at(*above, *path) if loaded.tree is not None else None
    line = None if node is None else node.line
    field = ".".join(path)
    return Problem(Severity.ERROR, loaded.name, line, field, message.removeprefix(f"{field}: "), cure, CODE)
