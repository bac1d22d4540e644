"""A relay that delays what passes, for kernels without netem.

``python delay.py PORT SECONDS`` takes the connections that a rule of netfilter turns to it, and
goes on to where each of them was going. Every byte arrives so many seconds after it was sent, in
both directions; the rate is not bounded.
"""

import asyncio
import socket
import struct
import sys
from contextlib import suppress

SO_ORIGINAL_DST = 80
"""From the kernel's ``netfilter_ipv4.h``."""
PIECE = 256 * 1024
IN_FLIGHT = 256
"""Pieces on their way in one direction: 64 MiB, more than any rate here has in its delay."""

Moment = tuple[float, bytes]


def destination(client: socket.socket) -> tuple[str, int]:
    """Where the connection was going before it was turned here."""
    _, port, address = struct.unpack(
        "!HH4s8x", client.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    )
    return socket.inet_ntoa(address), port


async def delayed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, seconds: float
) -> None:
    """Pass on all that comes until it ends, late."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[Moment] = asyncio.Queue(maxsize=IN_FLIGHT)

    async def read() -> None:
        data = b" "
        while data:
            data = await reader.read(PIECE)
            await pieces.put((loop.time() + seconds, data))

    reading = asyncio.ensure_future(read())
    try:
        while True:
            due, data = await pieces.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                return
            writer.write(data)
            await writer.drain()
    finally:
        reading.cancel()
        with suppress(OSError):
            writer.write_eof()


async def serve(port: int, *, seconds: float) -> None:
    async def relayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            theirs = await asyncio.open_connection(
                *destination(writer.get_extra_info("socket")), limit=PIECE
            )
            try:
                await asyncio.gather(
                    delayed(reader, theirs[1], seconds=seconds),
                    delayed(theirs[0], writer, seconds=seconds),
                )
            finally:
                theirs[1].close()
                writer.close()

    server = await asyncio.start_server(relayed, "0.0.0.0", port, limit=PIECE)
    print("listening", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), seconds=float(sys.argv[2])))
