from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("with_vocabulary",)
    WITH_VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    with_vocabulary: bool
    def __init__(self, with_vocabulary: _Optional[bool] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("model", "revision", "engine", "vocabulary_fingerprint", "vocabulary_size", "max_tokens", "max_contexts", "max_top_k", "vocabulary", "dtype")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOP_K_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    model: str
    revision: str
    engine: str
    vocabulary_fingerprint: str
    vocabulary_size: int
    max_tokens: int
    max_contexts: int
    max_top_k: int
    vocabulary: _containers.RepeatedScalarFieldContainer[str]
    dtype: str
    def __init__(self, model: _Optional[str] = ..., revision: _Optional[str] = ..., engine: _Optional[str] = ..., vocabulary_fingerprint: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., max_tokens: _Optional[int] = ..., max_contexts: _Optional[int] = ..., max_top_k: _Optional[int] = ..., vocabulary: _Optional[_Iterable[str]] = ..., dtype: _Optional[str] = ...) -> None: ...

class Context(_message.Message):
    __slots__ = ("name", "prompt_ids")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    prompt_ids: bytes
    def __init__(self, name: _Optional[str] = ..., prompt_ids: _Optional[bytes] = ...) -> None: ...

class ScoreOptions(_message.Message):
    __slots__ = ("top_k", "want_entropy", "top_k_min_entropy")
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    WANT_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    TOP_K_MIN_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    top_k: int
    want_entropy: bool
    top_k_min_entropy: float
    def __init__(self, top_k: _Optional[int] = ..., want_entropy: _Optional[bool] = ..., top_k_min_entropy: _Optional[float] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("trajectory_id", "response_ids", "contexts", "options")
    TRAJECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_IDS_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    trajectory_id: str
    response_ids: bytes
    contexts: _containers.RepeatedCompositeFieldContainer[Context]
    options: ScoreOptions
    def __init__(self, trajectory_id: _Optional[str] = ..., response_ids: _Optional[bytes] = ..., contexts: _Optional[_Iterable[_Union[Context, _Mapping]]] = ..., options: _Optional[_Union[ScoreOptions, _Mapping]] = ...) -> None: ...

class ContextScore(_message.Message):
    __slots__ = ("name", "logprobs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    name: str
    logprobs: bytes
    def __init__(self, name: _Optional[str] = ..., logprobs: _Optional[bytes] = ...) -> None: ...

class TopK(_message.Message):
    __slots__ = ("k", "ids", "logprobs", "positions")
    K_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    k: int
    ids: bytes
    logprobs: bytes
    positions: bytes
    def __init__(self, k: _Optional[int] = ..., ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., positions: _Optional[bytes] = ...) -> None: ...

class Activity(_message.Message):
    __slots__ = ("process", "started", "busy_seconds", "waiting_seconds")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    process: str
    started: float
    busy_seconds: float
    waiting_seconds: float
    def __init__(self, process: _Optional[str] = ..., started: _Optional[float] = ..., busy_seconds: _Optional[float] = ..., waiting_seconds: _Optional[float] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("trajectory_id", "scores", "top_k", "entropy", "teacher_revision", "seconds", "error", "error_code", "activity")
    TRAJECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    TEACHER_REVISION_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    trajectory_id: str
    scores: _containers.RepeatedCompositeFieldContainer[ContextScore]
    top_k: TopK
    entropy: bytes
    teacher_revision: str
    seconds: float
    error: str
    error_code: int
    activity: Activity
    def __init__(self, trajectory_id: _Optional[str] = ..., scores: _Optional[_Iterable[_Union[ContextScore, _Mapping]]] = ..., top_k: _Optional[_Union[TopK, _Mapping]] = ..., entropy: _Optional[bytes] = ..., teacher_revision: _Optional[str] = ..., seconds: _Optional[float] = ..., error: _Optional[str] = ..., error_code: _Optional[int] = ..., activity: _Optional[_Union[Activity, _Mapping]] = ...) -> None: ...
