#!/usr/bin/env -S python3 -ES
"""In place of ssh between hosts of namespaces.py: `serve` starts what it is sent, with the standard input that follows; `HOST COMMAND...` sends
both, and ends as it ended."""
import os
import signal
import socket
import subprocess
import sys
import threading

PORT = 7022


def answer(connection):
    with connection:
        command = b""
        while True:
            got = connection.recv(65536)
            if not got:
                return
            command += got
            if b"\0" in command:
                break
        command, _, given = command.partition(b"\0")
        for piece in iter(lambda: connection.recv(65536), b""):
            given += piece
        process = subprocess.Popen(["sh", "-c", command.decode()], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            process.stdin.write(given)
            process.stdin.close()
        except BrokenPipeError:
            pass  # it reads nothing
        for piece in iter(lambda: os.read(process.stdout.fileno(), 65536), b""):
            connection.sendall(piece)
        connection.sendall(b"\0%d" % process.wait())


def serve():
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with socket.create_server(("", PORT)) as server:
        while True:
            threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()


def send(host, words):
    with socket.create_connection((host, PORT), timeout=10) as connection:
        connection.settimeout(None)
        connection.sendall(" ".join(words).encode() + b"\0" + sys.stdin.buffer.read())
        connection.shutdown(socket.SHUT_WR)
        said = b""
        for piece in iter(lambda: connection.recv(65536), b""):
            said += piece
        text, end, status = said.rpartition(b"\0")
        sys.stdout.buffer.write(text)
        return int(status) if end else 255


if __name__ == "__main__":
    sys.exit(serve() if sys.argv[1] == "serve" else send(sys.argv[1], sys.argv[2:]))
