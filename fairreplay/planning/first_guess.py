"""A first guess of step times, KV size and prefill interval from the log alone, without simulating.

Between its first and its last token a request sits through its own decode steps, each of which costs the base, a bit
for every sequence beside it and a bit for every token of context, and through the prefills of others. Who ran when is
in the log, so these are the columns of a linear regression (non-negative least squares, relative errors).
The guess is only the place where the search of ``calibrate`` starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import theilslopes

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LOW_LOAD_MIN: Final = 10
"""Requests that met an empty queue needed to read the prefill speed off them."""
SLOPE_PAIRS_MAX: Final = 1_000
"""Theil-Sen looks at all pairs; a thousand requests give half a million."""
QUEUE_SHARE_MIN: Final = 0.05
"""Below this share of admissions with somebody left waiting, the log does not show what the memory holds."""
CAP_SPREAD: Final = 0.03
"""Running requests at admissions that mostly lie this close to one number show a cap, not a full memory."""


@dataclass(frozen=True)
class Observed:
    """What the log says of one replica's requests, in seconds from the start; NaN where it does not say."""

    arrival: Floats
    scheduled: Floats
    first_token: Floats
    finished: Floats
    prompt: Floats
    output: Floats
    fitted: Bools
    """Rows that the fit may look at."""


@dataclass(frozen=True)
class Guess:
    """Seconds per unit as in ``[cluster.step_time]``; tokens of KV; None where the log does not determine it."""

    base: float
    prefill_token: float
    decode_sequence: float
    context_token: float
    kv_tokens: float | None
    """Effective KV size; None: the log shows no queue for memory."""
    kv_tokens_min: float
    """The most that the log shows in use at once."""
    max_num_seqs: int | None
    """The cap on running requests that the log shows, if one binds."""
    prefill_interval: int


@dataclass(frozen=True)
class _Residence:
    """Who was in the batch when: rows with all instants known, and integrals over them."""

    start: Floats
    end: Floats
    prompt: Floats
    output: Floats

    def running(self, at: Floats) -> Floats:
        return _ramp(self.start, np.ones_like(self.start), at, 0) - _ramp(self.end, np.ones_like(self.end), at, 0)

    def running_seconds(self, at: Floats) -> Floats:
        """Integral of the number of running requests up to each instant."""
        return _ramp(self.start, np.ones_like(self.start), at, 1) - _ramp(self.end, np.ones_like(self.end), at, 1)

    def reserved(self, at: Floats, block_size: int) -> Floats:
        """KV tokens held, in whole blocks, if each request holds its prompt and output from the start."""
        held = np.ceil((self.prompt + self.output - 1) / block_size) * block_size
        return _ramp(self.start, held, at, 0) - _ramp(self.end, held, at, 0)

    def context(self, at: Floats) -> Floats:
        """KV tokens in use: the prompt, and output growing evenly."""
        grown = np.maximum(self.output - 1, 0)
        rate = grown / np.maximum(self.end - self.start, 1e-9)
        return (
            _ramp(self.start, self.prompt, at, 0)
            - _ramp(self.end, self.prompt + grown, at, 0)
            + _ramp(self.start, rate, at, 1)
            - _ramp(self.end, rate, at, 1)
        )

    def context_seconds(self, at: Floats) -> Floats:
        """Integral of ``context`` up to each instant."""
        grown = np.maximum(self.output - 1, 0)
        rate = grown / np.maximum(self.end - self.start, 1e-9)
        return (
            _ramp(self.start, self.prompt, at, 1)
            - _ramp(self.end, self.prompt + grown, at, 1)
            + _ramp(self.start, rate / 2, at, 2)
            - _ramp(self.end, rate / 2, at, 2)
        )


def _ramp(since: Floats, weight: Floats, at: Floats, power: int) -> Floats:
    """``sum_i weight_i * max(0, at - since_i)^power`` (power 0: a unit step), for each instant."""
    order = np.argsort(since, kind="stable")
    since, weight = since[order], weight[order]
    count = np.searchsorted(since, at, side="right")

    def moment(exponent: int) -> Floats:
        sums: Floats = np.concatenate([[0.0], np.cumsum(weight * since**exponent)])[count]
        return sums

    if power == 0:
        return moment(0)
    if power == 1:
        return at * moment(0) - moment(1)
    return at * at * moment(0) - 2 * at * moment(1) + moment(2)


def seconds_per_output_token(observed: Sequence[Observed]) -> float:
    """Median time per output token after the first, over the fitted rows; 10 ms where no row has two tokens."""
    rates = [
        (part.finished - part.first_token)[rows] / (part.output - 1)[rows]
        for part in observed
        if (rows := part.fitted & (part.output > 1) & (part.finished > part.first_token)).any()
    ]
    return float(np.median(np.concatenate(rates))) if rates else 0.01


def first_guess(observed: Sequence[Observed], prefill_first: bool, reserve: bool, block_size: int) -> Guess:
    """Read step times and sizes off the log of the replicas of one model.

    Args:
        prefill_first: prefill batches run alone, so others stand still in them.
        reserve: a request holds the whole of its KV from its admission.
    """
    token_s = seconds_per_output_token(observed)
    prefill_token = _prefill_seconds(observed, token_s)
    coefficients = _decode_seconds(observed, token_s, prefill_first, prefill_token)
    kv_tokens, kv_tokens_min, max_num_seqs = _sizes(observed, reserve, block_size)
    return Guess(
        base=coefficients[0],
        prefill_token=coefficients[1],
        decode_sequence=coefficients[2],
        context_token=coefficients[3],
        kv_tokens=kv_tokens,
        kv_tokens_min=kv_tokens_min,
        max_num_seqs=max_num_seqs,
        prefill_interval=_prefill_interval(observed, token_s),
    )


def _residence(part: Observed, *, decoding: bool) -> _Residence:
    """All rows that ran, fitted or not: the load beside a request is no secret of the held-out part.

    From admission (first token where the log does not say), or from the first token on if only ``decoding`` counts.
    """
    start = part.first_token if decoding else np.where(np.isnan(part.scheduled), part.first_token, part.scheduled)
    known = ~np.isnan(start) & ~np.isnan(part.finished)
    return _Residence(start[known], part.finished[known], part.prompt[known], part.output[known])


def _prefill_batches(part: Observed, token_s: float) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Instants of prefill batches (first tokens within half a step are one), their tokens, and each row's batch."""
    known = np.flatnonzero(~np.isnan(part.first_token))
    order = known[np.argsort(part.first_token[known], kind="stable")]
    instants = part.first_token[order]
    is_new = np.concatenate([[True], np.diff(instants) > token_s / 2])
    batch = np.full(len(part.first_token), -1, dtype=np.int64)
    batch[order] = np.cumsum(is_new) - 1
    tokens = np.bincount(batch[order], weights=part.prompt[order]).astype(np.float64)
    return instants[is_new], tokens, batch


def _prefill_seconds(observed: Sequence[Observed], token_s: float) -> float | None:
    """Seconds per prefill token: the slope of prefill time over the tokens of the batch.

    The log's own prefill time (``scheduled_at`` to first token) where it is known; else the TTFT of requests that met
    an empty queue and were prefilled alone. None where there are too few.
    """
    sizes, times = [], []
    for part in observed:
        _, tokens, batch = _prefill_batches(part, token_s)
        own = part.fitted & (batch >= 0)
        alone = np.bincount(batch[batch >= 0], minlength=len(tokens))[batch] == 1
        ahead = np.searchsorted(np.sort(part.arrival), part.arrival, side="left") - np.searchsorted(
            np.sort(part.first_token[batch >= 0]), part.arrival, side="right"
        )
        timed = own & ~np.isnan(part.scheduled)
        rows = timed if timed.any() else own & alone & (ahead == 0)
        start = np.where(np.isnan(part.scheduled), part.arrival, part.scheduled)
        sizes.append(tokens[batch[rows]])
        times.append((part.first_token - start)[rows])
    size, taken = np.concatenate(sizes), np.concatenate(times)
    if len(size) < LOW_LOAD_MIN or size.min() == size.max():
        return None
    stride = -(-len(size) // SLOPE_PAIRS_MAX)
    slope = float(theilslopes(taken[::stride], size[::stride])[0])
    return slope if slope > 0 else None


def _decode_seconds(
    observed: Sequence[Observed], token_s: float, prefill_first: bool, prefill_token: float | None
) -> tuple[float, float, float, float]:
    """(base, prefill token, decode sequence, context token) from the decode times; ``prefill_token`` if given holds."""
    rows_of: list[Floats] = []
    times: list[Floats] = []
    for part in observed:
        rows = np.flatnonzero(part.fitted & (part.output > 2) & (part.finished > part.first_token))
        if len(rows) == 0:
            continue
        instants, tokens, _ = _prefill_batches(part, token_s)
        begin, end = part.first_token[rows], part.finished[rows]
        after, until = np.searchsorted(instants, begin, side="right"), np.searchsorted(instants, end, side="right")
        totals = np.concatenate([[0.0], np.cumsum(tokens)])
        prefilled = totals[until] - totals[after]
        batches = (until - after) if prefill_first else np.zeros(len(rows))
        # A step that prefills is long but decodes no more than others: take the prefill out of the clock, so that the
        # means over time become means over steps.
        lost = totals * (prefill_token or 0.0)
        part = replace(
            part,
            first_token=part.first_token - lost[np.searchsorted(instants, part.first_token, side="right")],
            finished=part.finished - lost[np.searchsorted(instants, part.finished, side="right")],
        )
        residence = _residence(part, decoding=True)
        begin, end = part.first_token[rows], part.finished[rows]
        steps = part.output[rows] - 1
        per_second = steps / np.maximum(end - begin, 1e-9)
        running = (residence.running_seconds(end) - residence.running_seconds(begin)) * per_second
        context = (residence.context_seconds(end) - residence.context_seconds(begin)) * per_second
        rows_of.append(np.column_stack([steps + batches, prefilled, running, context]))
        times.append(np.maximum(end - begin, 1e-9))
    if not rows_of:
        return token_s, prefill_token or token_s / 100, token_s / 1000, token_s / 10**6
    matrix, taken = np.concatenate(rows_of), np.concatenate(times)
    free = [0, 1, 2, 3] if prefill_token is None else [0, 2, 3]
    found = np.zeros(4)
    found[free] = nnls(matrix[:, free] / taken[:, None], np.ones(len(taken)))[0]
    if prefill_token is not None:
        found[1] = prefill_token
    # A coefficient of zero could never grow in a search over logarithms: give it 2 % of a step.
    mean = matrix.sum(axis=0) / (matrix[:, 0].sum())
    for index in range(4):
        if found[index] <= 0:
            found[index] = 0.02 * token_s / max(mean[index], 1.0)
    return float(found[0]), float(found[1]), float(found[2]), float(found[3])


def _sizes(observed: Sequence[Observed], reserve: bool, block_size: int) -> tuple[float | None, float, int | None]:
    """(effective KV tokens, the most seen in use, binding cap on running requests), over all replicas.

    At an admission that leaves somebody waiting, something was full: the cap on running requests if their number is
    always the same then, else the memory.
    """
    in_use, running, is_queue = [], [], []
    for part in observed:
        residence = _residence(part, decoding=False)
        at = residence.start
        half_block = residence.running(at) * (block_size - 1) / 2
        in_use.append(residence.reserved(at, block_size) if reserve else residence.context(at) + half_block)
        running.append(residence.running(at))
        waiting = np.searchsorted(np.sort(part.arrival), at, side="right") - np.searchsorted(
            np.sort(residence.start), at, side="right"
        )
        is_queue.append(waiting > 0)
    used, count, queue = np.concatenate(in_use), np.concatenate(running), np.concatenate(is_queue)
    if len(used) == 0:
        return None, 0.0, None
    most = float(used.max())
    if queue.mean() < QUEUE_SHARE_MIN:
        return None, most, None
    usual = int(np.argmax(np.bincount(count[queue].astype(np.int64))))
    if usual > 1 and np.mean(np.abs(count[queue] - usual) <= CAP_SPREAD * usual) >= 0.5:
        return None, most, usual
    return float(np.percentile(used[queue], 75)), most, None


def _prefill_interval(observed: Sequence[Observed], token_s: float) -> int:
    """Decode steps between prefill batches while somebody waits: the shortest usual gap (10th percentile)."""
    gaps = []
    for part in observed:
        instants, _, _ = _prefill_batches(part, token_s)
        waiting = np.searchsorted(np.sort(part.arrival), instants, side="right") - np.searchsorted(
            np.sort(part.first_token[~np.isnan(part.first_token)]), instants + token_s / 2, side="right"
        )
        gaps.append(np.diff(instants)[waiting[:-1] > 0] / token_s)
    gap = np.concatenate(gaps)
    return max(1, round(float(np.percentile(gap, 10)))) if len(gap) else 1
