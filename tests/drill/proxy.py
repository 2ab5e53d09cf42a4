"""The way from one site to the server: a TCP proxy that can be slow, silent or cut."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import struct
import threading

AT_ONCE = 16 * 2**10
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, with a reset


class Proxies:
    """All proxies of a drill, in one thread of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def add(self, server_port: int) -> Proxy:
        proxy = Proxy(server_port, self._loop)
        asyncio.run_coroutine_threadsafe(proxy.open(), self._loop).result(10)
        return proxy

    def close(self) -> None:
        async def cancel() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancel(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@dataclasses.dataclass(eq=False)
class Pair:
    """A connection on its two sides; `severed` where the server's was closed and the site was not told."""

    site: asyncio.StreamWriter
    server: asyncio.StreamWriter
    severed: bool = False


class Proxy:
    """One site's way. `latency` seconds are added to each piece, `rate` bounds bytes a second, `silent` holds all back,
    `refusing` closes what is opened; all may be set at any moment."""

    def __init__(self, server_port: int, loop: asyncio.AbstractEventLoop) -> None:
        self._server_port, self._loop = server_port, loop
        self._pairs: set[Pair] = set()
        self.latency, self.rate, self.silent, self.refusing = 0.0, 0.0, False, False
        self.port = 0
        self.carried = 0

    async def open(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(server.sockets[0].getsockname()[1])

    def heal(self) -> None:
        self.latency, self.rate, self.silent, self.refusing = 0.0, 0.0, False, False

    def cut(self) -> None:
        """Close all connections abruptly, on both sides."""
        self._loop.call_soon_threadsafe(self._abort, True)

    def half_open(self) -> None:
        """Close the server's side of all connections; the site hears nothing of it."""
        self._loop.call_soon_threadsafe(self._abort, False)

    def _abort(self, both: bool) -> None:
        for pair in list(self._pairs):
            pair.severed = not both
            for writer in (pair.server, pair.site) if both else (pair.server,):
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        pair = Pair(site=writer, server=to_server)
        self._pairs.add(pair)
        down = asyncio.ensure_future(self._pump(from_server, writer, pair))
        try:
            await self._pump(reader, to_server, pair)
        finally:
            down.cancel()
            self._pairs.discard(pair)
            for each in (writer, to_server):
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: Pair) -> None:
        """Carry bytes one way until that way ends, and end the other with it, unless the server's side was severed."""
        with contextlib.suppress(OSError):
            while data := await reader.read(AT_ONCE):
                while self.silent:
                    await asyncio.sleep(0.05)
                if self.latency or self.rate:
                    await asyncio.sleep(self.latency + (len(data) / self.rate if self.rate else 0.0))
                if pair.severed:
                    continue  # what the site says goes nowhere
                self.carried += len(data)
                writer.write(data)
                await writer.drain()
        if not pair.severed:
            writer.close()
