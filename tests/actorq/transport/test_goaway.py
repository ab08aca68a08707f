"""An HTTP/2 error code that does not exist cannot crash a client."""

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc
import pytest

# In a separate process, because gRPC 1.84 and 1.85 crash it.
CLIENT = """
import sys
import grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    call = channel.stream_stream("/test/Echo")(iter([b"x"]), timeout=30)
    try:
        for answer in call:
            print(answer, flush=True)
    except grpc.RpcError as error:
        print(error.code().name, flush=True)
"""


def goaway(code: int) -> bytes:
    """A frame that reports that no stream was processed (RFC 9113, sec. 6.8)."""
    payload = struct.pack(">II", 0, code)
    return struct.pack(">I", len(payload))[1:] + bytes((7, 0)) + struct.pack(">I", 0) + payload


@pytest.fixture
def server() -> Iterator[int]:
    """Answers each message of a stream, and then waits for the client."""
    over = threading.Event()

    def echo(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield next(requests)
        over.wait(30)

    methods = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield port
        over.set()
        server.stop(0).wait()


def pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)


@pytest.mark.parametrize("code", [14, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_client_survives_a_goaway_with_an_unknown_error_code(server: int, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with subprocess.Popen([sys.executable, "-c", CLIENT, address], stdout=subprocess.PIPE, text=True) as client:
            near, _ = listening.accept()
            with near, socket.create_connection(("127.0.0.1", server)) as far:
                threads = [threading.Thread(target=pump, args=ends) for ends in ((near, far), (far, near))]
                for thread in threads:
                    thread.start()
                assert client.stdout is not None
                assert client.stdout.readline() == "b'x'\n"
                near.sendall(goaway(code))
                assert client.stdout.readline() == "UNAVAILABLE\n"
                assert client.wait(30) == 0
                for end in (near, far):
                    with suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
                for thread in threads:
                    thread.join(30)
