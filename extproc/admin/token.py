"""What is the token of the admin port? Read by the service that asks for it, and by the commands that show it."""

from __future__ import annotations

from pathlib import Path

TOKEN_VARIABLE = "EXTPROC_ADMIN_TOKEN"


class TokenError(ValueError):
    """There is no token where one is to be. The message names the setting and the cure, and never the token."""


def checked_token(text: str, where: str) -> str:
    """Raises TokenError, which names where it came from."""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise TokenError(f"{where} must hold one token, without spaces or line breaks in it")
    return token


def token_in(file: Path, setting: str) -> str:
    """Raises TokenError."""
    try:
        return checked_token(file.read_text("utf-8", "replace"), f"{setting}: {file}")
    except OSError as error:
        raise TokenError(f"{setting}: cannot read {file}: {error.strerror}") from None
