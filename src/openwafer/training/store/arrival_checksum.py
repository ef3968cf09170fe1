"""Takes the checksum of a part as it arrives, of each piece while it is still in cache."""

import threading

import xxhash

from openwafer.training.store.host_buffer import HostBuffer


class ArrivalChecksum:
    """XXH3, 64 bits, of a part whose units of `unit_bytes` come in any order, from any thread."""

    def __init__(self, buffer: HostBuffer, unit_bytes: int) -> None:
        self._buffer = buffer
        self._unit_bytes = unit_bytes
        self._digest = xxhash.xxh3_64()
        self._lock = threading.Lock()
        self._arrived: set[int] = set()
        self._position = 0
        self._is_taken = False

    def take(self, start: int) -> bool:
        """The unit that begins at `start` has come; say, to one caller, when all bytes are taken.

        Bytes are taken in their order: by whoever brings the first that is missing, together with
        those that came behind it meanwhile.
        """
        with self._lock:
            self._arrived.add(start)
            if self._is_taken or self._position not in self._arrived:
                return False
            self._is_taken = True
        while True:
            end = min(self._position + self._unit_bytes, self._buffer.num_bytes)
            self._digest.update(self._buffer.window(self._position, end))
            with self._lock:
                self._position = end
                if end not in self._arrived:
                    self._is_taken = False
                    return end == self._buffer.num_bytes

    @property
    def hexadecimal(self) -> str:
        """The checksum, once all bytes are taken."""
        return self._digest.hexdigest()
