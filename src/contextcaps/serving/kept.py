"""Features of photographs that a page shows, kept so that a yes or no need not run the backbone again."""

from collections import OrderedDict

from contextcaps.serving.engine import Features

__all__ = ["Kept"]


class Kept:
    """The photographs used last, as many as fit into so much memory.

    A key is what the page has drawn at random, so that nobody can ask for what another has sent.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        """Bytes of all of them."""
        self._features: OrderedDict[tuple[str, str], Features] = OrderedDict()

    def put(self, model: str, key: str, features: Features) -> None:
        """Keep a photograph's features; those that were used least lately go."""
        self.drop(model, key)
        self._features[model, key] = features
        self.size += features.size
        while self.size > self.most:
            _, gone = self._features.popitem(last=False)
            self.size -= gone.size

    def get(self, model: str, key: str) -> Features | None:
        """Return a photograph's features; None where they are not there any more."""
        found = self._features.get((model, key))
        if found is not None:
            self._features.move_to_end((model, key))
        return found

    def drop(self, model: str, key: str) -> None:
        """Forget a photograph."""
        gone = self._features.pop((model, key), None)
        self.size -= 0 if gone is None else gone.size
