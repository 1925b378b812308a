"""A channel that keeps what its party sent, for tests of what a protocol shows to the other party."""

from collections.abc import Iterable, Iterator

from precad.mpc.channel import Channel


class RecordingChannel:
    """A party's end with a log of (label, payload) in the order of sending."""

    def __init__(self, inner: Channel) -> None:
        self._inner = inner
        self.sent: list[tuple[str, bytes]] = []

    @property
    def party(self):
        return self._inner.party

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        self.sent.append((label, payload))
        return self._inner.exchange(label, payload, at_most)

    def exchange_pieces(self, label: str, pieces: Iterable[bytes], at_most: int | None = None) -> Iterator[bytes]:
        """Logged as one message, as it is one step."""
        sent = bytearray()

        def noted() -> Iterator[bytes]:
            for piece in pieces:
                sent.extend(piece)
                yield piece

        yield from self._inner.exchange_pieces(label, noted(), at_most)
        self.sent.append((label, bytes(sent)))
