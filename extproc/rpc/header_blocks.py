"""Which headers does an encoded block hold? Compression (HPACK, RFC 7541) is the library's."""

from __future__ import annotations

import logging

from hpack import Decoder, HPACKError

from extproc.rpc.framing import COMPRESSION_ERROR, Header, ProtocolError

_MOST_REMEMBERED = 64

# At debug the library writes down each header: what is in them is nobody's business, tokens among them.
logging.getLogger("hpack").setLevel(logging.WARNING)


class HeaderBlocks:
    """Those of one connection, in their order.

    A block of nothing but short references (RFC 7541, 6.1) leaves the tables alone, and Envoy's mostly are such: what
    they hold is remembered, while the tables stay as they are.
    """

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of one block's headers, decoded."""
        self._decoder = Decoder(max_bytes)
        self._remembered: dict[bytes, list[Header]] = {}

    def decode(self, block: bytes) -> list[Header]:
        """Raises ProtocolError."""
        known = self._remembered.get(block)
        if known is not None:
            return known
        try:
            headers = [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except (HPACKError, UnicodeDecodeError) as error:
            raise ProtocolError(COMPRESSION_ERROR, f"headers that do not decode: {error}") from error
        if block and min(block) > 128 and max(block) < 255:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[block] = headers
        else:
            self._remembered.clear()
        return headers
