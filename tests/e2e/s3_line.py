"""A line to a server on this machine that can be cut in the middle of a request."""

import contextlib
import socket
import threading


class Line:
    """Forwards connections to a port; what clients send is shown to `look`, and where it returns True, is cut off."""

    def __init__(self, port, look=lambda sent: False):
        self._target, self.look = port, look
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            client, _ = self._socket.accept()
            server = socket.create_connection(("127.0.0.1", self._target))
            for source, sink, looks in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._forward, args=(source, sink, looks), daemon=True).start()

    def _forward(self, source, sink, looks):
        try:
            while data := source.recv(1 << 16):
                if looks and self.look(data):
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
