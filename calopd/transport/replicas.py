"""Single calls to one teacher replica, without retries: what a check wants to see, a client hides."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import grpc
import numpy as np

from calopd.core.errors import CalopdError
from calopd.core.types import LOGPROBS_ONLY, ScoreOptions, Scores
from calopd.transport import auth, convert
from calopd.transport.v1 import teacher_scorer_pb2
from calopd.transport.v1.teacher_scorer_pb2_grpc import TeacherScorerStub

OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 256 * 2**20)]


class ReplicaError(CalopdError):
    """A call that the replica, or whatever listens at its address, did not answer."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}" if details else code)
        self.code, self.details = code, details


def replicas_at(address: str, *, token: str = "") -> "list[Replica]":
    """Each replica behind `host:port`: one per address that the host name has."""
    host = address.rpartition(":")[0]
    return [Replica(single, token=token, name=host) for single in single_addresses(address)]


def single_addresses(address: str) -> list[str]:
    """The addresses behind `host:port`, as `host:port` each."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise ReplicaError("UNAVAILABLE", f"the name {host!r} cannot be resolved ({error})") from None
    hosts = dict.fromkeys(str(entry[4][0]) for entry in found)
    if {"127.0.0.1", "::1"} >= hosts.keys():  # both are this machine, and services listen on one of them
        return [address]
    return [f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in hosts]


class Replica:
    """One replica at one address."""

    def __init__(self, address: str, *, token: str = "", timeout_seconds: float = 30.0, name: str = "") -> None:
        self.address = address
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._timeout = timeout_seconds
        self._name = name
        """The host name in the certificate, if the address is a number."""

    def describe(self, *, with_vocabulary: bool = False) -> convert.Description:
        request = teacher_scorer_pb2.DescribeRequest(with_vocabulary=with_vocabulary)
        with self._stub() as stub:
            answer = stub.Describe(request, metadata=self._metadata, timeout=self._timeout)
        return convert.description_from_message(answer)

    def score(
        self,
        response_ids: np.ndarray,
        contexts: Mapping[str, np.ndarray],
        vocabulary_size: int,
        options: ScoreOptions = LOGPROBS_ONLY,
    ) -> Scores:
        """Score once. Implausible scores raise UnhealthyTeacher, as they would in a run."""
        request = convert.score_request("doctor", response_ids, contexts, options)
        with self._stub() as stub:
            received = convert.ReceivedScores(stub.Score(request, metadata=self._metadata, timeout=self._timeout))
        received.check(request, vocabulary_size)
        return received.decode()

    @contextmanager
    def _stub(self) -> Iterator[TeacherScorerStub]:
        credentials = auth.channel_credentials()
        named = [("grpc.ssl_target_name_override", self._name)] if credentials and self._name else []
        channel = (
            grpc.secure_channel(self.address, credentials, options=[*OPTIONS, *named])
            if credentials
            else grpc.insecure_channel(self.address, options=OPTIONS)
        )
        with channel:
            try:
                yield TeacherScorerStub(channel)
            except grpc.RpcError as error:
                raise ReplicaError(error.code().name, error.details() or "") from None
