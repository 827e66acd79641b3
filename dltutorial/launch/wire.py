"""Messages between the caller, the fork server and the ranks: one byte of kind, eight of length, the payload.

In: a connected stream socket. Out: whole messages. Both ends are processes of one launch, tied by a socket pair that
has no name, so nobody else can write to it.
"""

import socket
import struct

_HEAD = struct.Struct(">cQ")

# server -> caller
READY, BROKEN, STARTED, ENDED = b"R", b"B", b"S", b"E"
# caller -> server: single bytes without a head; START comes with the new rank's file descriptors
START, KILL, WHERE = b"s", b"k", b"w"
# caller -> rank
SETTING, CALL = b"s", b"c"
# caller -> rank that stays for the next cell
VALUES, CELL, REJOIN, INTERRUPT, CUT = b"v", b"l", b"j", b"i", b"x"
# rank -> caller
RESULT, ERROR, PROGRESS, GOT = b"V", b"X", b"P", b"G"

Message = tuple[bytes, bytearray]


def send(channel: socket.socket, kind: bytes, payload: bytes = b"") -> None:
    """Send one whole message."""
    channel.sendall(_HEAD.pack(kind, len(payload)))
    channel.sendall(payload)


def receive(channel: socket.socket) -> Message:
    """Wait for one whole message.

    Raises:
        EOFError: the other end is gone.
    """
    kind, length = _HEAD.unpack(_exactly(channel, _HEAD.size))
    return kind, _exactly(channel, length)


def _exactly(channel: socket.socket, n_bytes: int) -> bytearray:
    data = bytearray()
    while len(data) < n_bytes:
        part = channel.recv(min(n_bytes - len(data), 2**20))
        if not part:
            raise EOFError
        data += part
    return data


class Reader:
    """Puts messages together from whatever has arrived, for one who listens to many."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: tuple[bytes, int] | None = None  # kind and length of the message that is coming in

    def feed(self, data: bytes) -> list[Message]:
        """Take what has arrived; return the messages that are now whole."""
        self._data += data
        whole = []
        while True:
            if self._head is None and len(self._data) >= _HEAD.size:
                self._head = _HEAD.unpack_from(self._data)
                del self._data[: _HEAD.size]
            if self._head is None or len(self._data) < self._head[1]:
                return whole
            kind, length = self._head
            whole.append((kind, self._take(length)))
            self._head = None

    def _take(self, length: int) -> bytearray:
        """The next payload; a large one, which comes alone, is handed on without a copy."""
        if len(self._data) == length:
            payload, self._data = self._data, bytearray()
            return payload
        payload = self._data[:length]
        del self._data[:length]
        return payload
