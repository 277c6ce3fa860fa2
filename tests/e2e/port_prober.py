"""Try a port without a credential, with a wrong and with the right one: python -m tests.e2e.port_prober < requests

Reads a JSON list of [kind, address, credential] and prints a JSON list of outcomes, from whatever network it runs in.
"""

import json
import socket
import sys
import urllib.error
import urllib.request

import grpc
import redis

from calopd.transport.v1 import teacher_scorer_pb2
from calopd.transport.v1.teacher_scorer_pb2_grpc import TeacherScorerStub

SECONDS = 60
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def scores(address: str, credential: str) -> str:
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        metadata = [("authorization", f"Bearer {credential}")] if credential else []
        try:
            TeacherScorerStub(channel).Describe(
                teacher_scorer_pb2.DescribeRequest(), metadata=metadata, timeout=SECONDS
            )
        except grpc.RpcError as error:
            return "unreachable" if error.code() == grpc.StatusCode.UNAVAILABLE else error.code().name
    return "OK"


def http(address: str, path: str, credential: str, body: bytes | None = None) -> str:
    headers = {"Authorization": f"Bearer {credential}"} if credential else {}
    request = urllib.request.Request(f"http://{address}{path}", body, headers)
    try:
        return str(DIRECT.open(request, timeout=SECONDS).status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError:
        return "unreachable"


def queue(address: str, credential: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        redis.Redis(host, int(port), password=credential or None, socket_timeout=SECONDS).keys()
    except redis.AuthenticationError:
        return "refused"
    except redis.ConnectionError:
        return "unreachable"
    return "OK"


def store(address: str, credential: str) -> str:
    """What the exploit needs: a server at the port that answers a stranger."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return "unreachable"
    return "connected"


KINDS = {
    "scores": scores,
    "queue": queue,
    "connection": store,
    "generate": lambda address, credential: http(address, "/v1/generate", credential, b"{}"),
    "metrics": lambda address, credential: http(address, "/metrics", credential),
    "status": lambda address, credential: http(address, "/status", credential),
}


if __name__ == "__main__":
    print(json.dumps([KINDS[kind](address, credential) for kind, address, credential in json.load(sys.stdin)]))
