"""In which order does a key prefer the servers?

Consistent hashing with uhashring: each server owns many points on a ring of 53-bit numbers; a key prefers the owner of
the next point, then the owners of those that follow. The points depend on a server's name alone, so two processes with
the same servers agree, in whatever order they learned of them; and when a server comes or goes, only the keys between
its points and those before them move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from uhashring import HashRing  # type: ignore[import-untyped]
from xxhash import xxh3_64_intdigest

# Points per server of weight 1. The spread of shares is about 1 / sqrt(points), 10 %; the load bound levels the rest.
# More would make a change of the fleet slower: it sorts all points, 64,000 of them with 640 servers.
POINTS = 100
# Each single change sorts all points, which costs about a tenth of building the ring anew.
_FEW = 8
_KEPT = 4096  # orders remembered; 8 bytes a server and order


def _hash(key: str | bytes) -> float:
    """The upper 53 bits as a float, which holds them exactly: floats sort several times as fast as long ints."""
    return float(xxh3_64_intdigest(key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")) >> 11)


class Ring:
    """The servers of a pool on a ring. Changing it costs the changed servers' points and one sort of all points."""

    def __init__(self, servers: Iterable[str] | Mapping[str, float] = ()) -> None:
        """See `update`."""
        self._ring = HashRing(hash_fn=_hash)
        self._points: dict[str, int] = {}  # per server
        self._keys: list[float] = []  # the points, along the ring
        self._orders: dict[tuple[int, int], tuple[str, ...]] = {}
        self.update(servers)

    def __len__(self) -> int:
        return len(self._points)

    def update(self, servers: Iterable[str] | Mapping[str, float]) -> None:
        """Make these the servers: names, or names with their weights (1 is normal).

        Raises:
            ValueError: a weight that is not above 0.
        """
        weights = servers if isinstance(servers, Mapping) else dict.fromkeys(servers, 1.0)
        for name, weight in weights.items():
            if not 0 < weight < float("inf"):
                raise ValueError(f"weight {weight} of {name} must be above 0")
        points = {name: max(1, round(POINTS * weight)) for name, weight in weights.items()}
        if points == self._points:
            return
        gone = self._points.keys() - points.keys()
        changed = {name: {"vnodes": count} for name, count in points.items() if self._points.get(name) != count}
        if len(gone) + len(changed) > _FEW:
            self._ring = HashRing({name: {"vnodes": count} for name, count in points.items()}, hash_fn=_hash)
        else:
            for name in gone:
                self._ring.remove_node(name)
            for name, points_of in changed.items():
                self._ring.add_node(name, points_of)
        self._points = points
        # Not `get_points()`: building a tuple per point takes longer than all the rest of a change.
        self._keys = self._ring._keys
        self._orders.clear()

    def walk(self, key: bytes | str) -> Iterator[str]:
        """The servers in the key's order, each once; looked up only as far as it is asked for."""
        if self._keys:
            yield from self._from(self._ring.get_node_pos(key))

    def preference(self, key: bytes | str, n: int | None = None) -> tuple[str, ...]:
        """The first `n` servers in the key's order; None: all of them."""
        wanted = len(self._points) if n is None else min(n, len(self._points))
        if wanted <= 0:
            return ()
        position = self._ring.get_node_pos(key)
        order = self._orders.get((position, wanted))
        if order is None:
            servers = self._from(position)
            order = tuple([next(servers) for _ in range(wanted)])
            if len(self._orders) >= _KEPT:
                self._orders.clear()
            self._orders[position, wanted] = order
        return order

    def _from(self, position: int) -> Iterator[str]:
        keys, owners, total = self._keys, self._ring.ring, len(self._points)
        seen: set[str] = set()
        for part in (range(position, len(keys)), range(position)):
            for point in part:
                owner = owners[keys[point]]
                if owner not in seen:
                    seen.add(owner)
                    yield owner
                    if len(seen) == total:
                        return
