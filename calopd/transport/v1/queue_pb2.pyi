from calopd.transport.v1 import teacher_scorer_pb2 as _teacher_scorer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "max_tokens")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    max_tokens: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("run", "batch", "index", "problem_id", "sample", "seed", "policy_version", "sampling", "contexts", "score_options", "policy_sha256", "newer_policy", "epoch")
    RUN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    SCORE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    POLICY_SHA256_FIELD_NUMBER: _ClassVar[int]
    NEWER_POLICY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    run: str
    batch: str
    index: int
    problem_id: str
    sample: int
    seed: int
    policy_version: int
    sampling: Sampling
    contexts: _containers.RepeatedScalarFieldContainer[str]
    score_options: _teacher_scorer_pb2.ScoreOptions
    policy_sha256: str
    newer_policy: bool
    epoch: int
    def __init__(self, run: _Optional[str] = ..., batch: _Optional[str] = ..., index: _Optional[int] = ..., problem_id: _Optional[str] = ..., sample: _Optional[int] = ..., seed: _Optional[int] = ..., policy_version: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., contexts: _Optional[_Iterable[str]] = ..., score_options: _Optional[_Union[_teacher_scorer_pb2.ScoreOptions, _Mapping]] = ..., policy_sha256: _Optional[str] = ..., newer_policy: _Optional[bool] = ..., epoch: _Optional[int] = ...) -> None: ...

class Trajectory(_message.Message):
    __slots__ = ("ticket", "prompt_ids", "response_ids", "rollout_logprobs", "truncated", "policy_version", "scores", "correct", "answered_after_think", "sampler", "worker", "sampling_seconds", "activity", "first_token_time", "policy_sha256")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_IDS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_AFTER_THINK_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_TIME_FIELD_NUMBER: _ClassVar[int]
    POLICY_SHA256_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    prompt_ids: bytes
    response_ids: bytes
    rollout_logprobs: bytes
    truncated: bool
    policy_version: int
    scores: _teacher_scorer_pb2.ScoreResponse
    correct: bool
    answered_after_think: bool
    sampler: str
    worker: str
    sampling_seconds: float
    activity: _teacher_scorer_pb2.Activity
    first_token_time: float
    policy_sha256: str
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., prompt_ids: _Optional[bytes] = ..., response_ids: _Optional[bytes] = ..., rollout_logprobs: _Optional[bytes] = ..., truncated: _Optional[bool] = ..., policy_version: _Optional[int] = ..., scores: _Optional[_Union[_teacher_scorer_pb2.ScoreResponse, _Mapping]] = ..., correct: _Optional[bool] = ..., answered_after_think: _Optional[bool] = ..., sampler: _Optional[str] = ..., worker: _Optional[str] = ..., sampling_seconds: _Optional[float] = ..., activity: _Optional[_Union[_teacher_scorer_pb2.Activity, _Mapping]] = ..., first_token_time: _Optional[float] = ..., policy_sha256: _Optional[str] = ...) -> None: ...
