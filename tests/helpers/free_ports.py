"""Ports for servers that a test starts."""
import random
import socket

CHOOSER = random.SystemRandom()  # tests beside this one may have the same seed


def are_free(ports):
    sockets = []
    try:
        for port in ports:
            sockets.append(socket.socket())
            sockets[-1].bind(("127.0.0.1", port))
        return True
    except OSError:
        return False
    finally:
        for one in sockets:
            one.close()


def following(count):
    """The first of `count` free ports in a row. They lie below those that the kernel gives to connections (32768 to 60999), so that
    no connection takes one before its server starts."""
    while True:
        port = CHOOSER.randrange(10000, 20000)
        if are_free(range(port, port + count)):
            return port


def one():
    return following(1)


def for_weed(count):
    """SeaweedFS listens 10,000 above each, too."""
    ports = set()
    while len(ports) < count:
        port = following(1)
        if are_free([port + 10000]):
            ports.add(port)
    return list(ports)
