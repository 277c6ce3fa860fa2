"""Checks of the teacher replicas that are running: reachable, alike, of the right vocabulary, with plausible scores."""

import numpy as np

from calopd.core.contexts import BASE
from calopd.core.errors import UnhealthyTeacher, VocabularyMismatch
from calopd.core.types import ScoreOptions
from calopd.doctor.case import Case
from calopd.doctor.model_checks import needed_positions
from calopd.doctor.outcome import Outcome, failed, not_checked, passed
from calopd.models.tokenizers import check_same_vocabulary, fingerprint, vocabulary
from calopd.transport.replicas import ReplicaError

STARTED_BY_RUN = "teacher.addresses is empty: `calopd run` starts the teacher"
ADVICE = {
    "UNAVAILABLE": "start the teacher, or correct teacher.addresses; check port, firewall and TLS on both sides",
    "UNAUTHENTICATED": "set CALOPD_TOKEN to the token that the teacher was started with",
    "UNIMPLEMENTED": "something else listens there: name the gRPC port of a calopd teacher (teacher.port)",
    "DEADLINE_EXCEEDED": "the teacher is overloaded or hangs: look at its log",
    "INVALID_ARGUMENT": "the teacher refuses requests that a run would send: raise its limits",
}
AGREEMENT_NATS = 0.5
"""Largest mean difference between two replicas of one teacher; replicas differ in batching and rounding only."""
TOP_K = 8


def advice_on(error: ReplicaError) -> str:
    code = "UNIMPLEMENTED" if error.code in ("NOT_FOUND", "UNKNOWN") else error.code
    return ADVICE.get(code, "look at the log of the teacher")


def reachable(case: Case) -> Outcome:
    """Every replica behind every address says what it serves."""
    if not case.teacher_is_remote:
        return not_checked(STARTED_BY_RUN)
    try:
        replicas = case.replicas
    except ReplicaError as error:
        return failed(f"teacher.addresses: {error}", advice_on(error))
    for replica in replicas:
        try:
            replica.describe()
        except ReplicaError as error:
            return failed(f"the teacher at {replica.address} does not answer ({error})", advice_on(error))
    found = case.descriptions[0]
    return passed(f"{len(replicas)} replicas of {found.model} ({found.engine}) answer")


def revisions(case: Case) -> Outcome:
    """All replicas serve the same weights."""
    if not case.teacher_is_remote:
        return not_checked(STARTED_BY_RUN)
    first = case.descriptions[0]
    for replica, found in zip(case.replicas, case.descriptions, strict=True):
        if found.revision != first.revision:
            return failed(
                f"the teacher at {replica.address} has the revision {found.revision} ({found.model}), "
                f"the one at {case.replicas[0].address} has {first.revision} ({first.model})",
                "serve the same model files on all replicas, and restart the one that differs",
            )
    return passed(f"all {len(case.replicas)} replicas have the revision {first.revision}")


def replica_vocabulary(case: Case) -> Outcome:
    """Ids mean the same tokens to every replica as to the student."""
    if not case.teacher_is_remote:
        return not_checked(STARTED_BY_RUN)
    ours = vocabulary(case.student_tokenizer)
    for replica, found in zip(case.replicas, case.descriptions, strict=True):
        if found.vocabulary_fingerprint == fingerprint(ours) and found.vocabulary_size >= len(ours):
            continue
        try:
            check_same_vocabulary(ours, replica.describe(with_vocabulary=True).vocabulary)
        except VocabularyMismatch as error:
            return failed(f"{replica.address}: {error}", "choose a teacher and a student of one family")
        return failed(
            f"{replica.address}: the teacher's head has {found.vocabulary_size:,} ids, the vocabulary {len(ours):,}",
            "choose a teacher and a student of one family",
        )
    return passed(f"{len(ours):,} tokens, the same for the student and all replicas")


def limits(case: Case) -> Outcome:
    """No request of a run exceeds the limits of a teacher."""
    config = case.config
    needed, settings = needed_positions(case, "teacher")
    kl = config.method.method.forward_kl
    top_k = max(config.method.overlap_top_k, kl(config.method.settings).top_k if kl is not None else 0)
    wanted = {
        "max_tokens": (needed, settings),
        "max_contexts": (len(case.contexts), "the contexts of the method"),
        "max_top_k": (top_k, "the top-k of the method"),
    }
    if case.teacher_is_remote:
        given = [(f"the teacher at {r.address}", d) for r, d in zip(case.replicas, case.descriptions, strict=True)]
    else:
        given = [("[teacher]", config.teacher)]  # type: ignore[list-item]
    for where, source in given:
        for key, (value, cause) in wanted.items():
            if (limit := getattr(source, key)) < value:
                return failed(
                    f"{where} allows {key} = {limit:,}, but {cause} = {value:,}",
                    f"raise teacher.{key} to {value:,} where the teacher runs: longer requests become dead letters",
                )
    return passed(f"requests of up to {needed:,} tokens, {len(case.contexts)} contexts and top-{top_k} are allowed")


def scores(case: Case) -> Outcome:
    """Scores of a text are plausible, depend on the prompt, and agree between replicas."""
    if not case.teacher_is_remote:
        return not_checked(STARTED_BY_RUN)
    first: np.ndarray | None = None
    for replica, described in zip(case.replicas, case.descriptions, strict=True):
        options = ScoreOptions(top_k=min(TOP_K, described.max_top_k), want_entropy=True)
        try:
            found = replica.score(case.scored_ids, case.sequences, described.vocabulary_size, options)
        except ReplicaError as error:
            return failed(f"the teacher at {replica.address} refuses to score ({error})", _scoring_advice(error))
        except UnhealthyTeacher as error:
            return failed(f"the teacher at {replica.address} answers with bad scores: {error}", BAD_SCORES)
        if (fault := implausible(case.scored_ids, found.logprobs, found.top_k)) is not None:
            return failed(f"the teacher at {replica.address}: {fault}", BAD_SCORES)
        first = found.logprobs if first is None else first
        if (apart := float(np.abs(found.logprobs - first).mean())) > AGREEMENT_NATS:
            return failed(
                f"the teachers at {case.replicas[0].address} and {replica.address} differ by {apart:.2f} nats a token",
                "compare the model files and the GPUs of the two replicas: one of them computes something else",
            )
    assert first is not None
    return passed(
        f"{len(case.scored_ids)} tokens under {len(first)} contexts: mean {first[0].mean():.2f} nats under {BASE}"
    )


BAD_SCORES = "do not train with it: check its weight files, dtype and engine, and restart it"


def _scoring_advice(error: ReplicaError) -> str:
    unhealthy = error.code == "DATA_LOSS" or (error.code == "UNAVAILABLE" and error.details)
    return BAD_SCORES if unhealthy else advice_on(error)


def implausible(ids: np.ndarray, logprobs_CT: np.ndarray, top_k: object) -> str | None:
    """A fault of the scores that shows without the model; None if there is none."""
    if len(logprobs_CT) > 1 and np.ptp(logprobs_CT, axis=0).max() < 1e-6:
        return "the scores are the same under every context: they do not depend on the prompt"
    top_ids, top_logprobs = getattr(top_k, "ids", None), getattr(top_k, "logprobs", None)
    if top_ids is None or top_logprobs is None:
        return None
    rows, places = np.nonzero(top_ids == ids[:, None])
    apart = np.abs(top_logprobs[rows, places] - logprobs_CT[0][rows])
    if len(apart) and apart.max() > 0.05:
        return f"a token and the same token among the top {top_ids.shape[1]} differ by {apart.max():.2f} nats"
    return None
