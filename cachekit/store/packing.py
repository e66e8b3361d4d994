"""How artifacts are compressed: one zstd frame each, which states the size of its content. Pure."""

from __future__ import annotations

from cachekit.errors import CorruptError, StoreError

# The format's own bounds: a block of at most 128 KiB takes at least four bytes.
_BLOCK = 128 * 1024
_BLOCK_TAKES = 4


def pack(data: bytes) -> bytes:
    """The bytes as one zstd frame of level 3, which states the size of its content."""
    import zstandard

    return zstandard.ZstdCompressor(level=3, write_content_size=True, write_checksum=False).compress(data)


def unpack(stored: bytes, size: int) -> bytes:
    """The zstd frame's content, which must be exactly ``size`` bytes; a frame that claims more is not unpacked.

    Raises `CorruptError`, and `StoreError` if there is no memory for it, which proves no damage.
    """
    import zstandard

    try:
        # The unpacker allocates what the frame claims, whatever limit it is given.
        claimed = zstandard.frame_content_size(stored)
        if claimed != size:
            raise CorruptError(f"blob claims to unpack to {claimed} bytes, the bundle says {size}")
        if size > (len(stored) // _BLOCK_TAKES + 1) * _BLOCK:
            raise CorruptError(f"blob of {len(stored)} bytes cannot hold the {size} bytes that it claims")
        if size == 0:
            return b""
        data = zstandard.ZstdDecompressor().decompress(stored, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise CorruptError(f"blob is not zstd: {exc}") from exc
    except MemoryError as exc:
        raise StoreError(f"no memory to unpack a blob into {size} bytes") from exc
    if len(data) != size:
        raise CorruptError(f"blob unpacks to {len(data)} bytes, the bundle says {size}")
    return data
