"""Whether other threads run while an access waits for the pool. The way to the manager, whose address is the argument,
is this program's own: it stops to forward."""

import socket
import sys
import threading
import time

from cenote_pool import Address, InvalidError, LostError, Space

hangs = threading.Event()
forwarded = []


def pump(source: socket.socket, to: socket.socket) -> None:
    while data := source.recv(1 << 16):
        if not hangs.is_set():
            to.sendall(data)


def forward(listener: socket.socket, manager: str) -> None:
    host, port = manager.rsplit(":", 1)
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((host, int(port)))
        # What nobody refers to is closed.
        forwarded.append((client, server))
        for ways in ((client, server), (server, client)):
            threading.Thread(target=pump, args=ways, daemon=True).start()


def main(manager: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=forward, args=(listener, manager), daemon=True).start()
    way = f"127.0.0.1:{listener.getsockname()[1]}"
    space = Space.connect("waits", way, size=16 << 20)
    # A part that the space does not have, as far as is known here: the manager is asked.
    nowhere = Address.parse("200.0+0@1")

    def ask() -> None:
        try:
            space.load(nowhere)
        except (InvalidError, LostError):
            pass

    hangs.set()
    asking = threading.Thread(target=ask)
    asking.start()
    turns = 0
    while asking.is_alive():
        time.sleep(0.01)
        turns += 1
    assert turns >= 20, f"{turns} turns: the other thread had to wait"
    hangs.clear()
    space.close()


main(sys.argv[1])
