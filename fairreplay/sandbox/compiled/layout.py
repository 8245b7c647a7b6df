"""Where things stand in the compiled engine's arrays.

The engine's whole state is a handful of int64 arrays, so that one compilation serves every workload and setting. They
are read as ``e[at.CLOCK]`` or ``run[slot + at.KNOWN]``; this module is that ``at``.

``e``      scalars of the engine, then a copy of the settings in force.
``run``    running requests, ``SLOT`` numbers each; a slot is named by the index of its first number. Slot 0 is the
           sentinel of the running list, a ring in order of admission.
``out``    results, one row a column of ``EngineResult``, one column a request.
``way``    by request, ``WAY`` numbers each: the next one in its queue, and where it is now.
``kept``   by request, ``KEPT`` numbers each: what a preempted request keeps while it waits.
``queues`` waiting queues, ``QUEUE`` numbers each, and entries of the same form that count service.
``ranks``  by queue, then by queue again: what policies that keep ranks order heads by (``ranking``).
``misses`` by tenant, of its last requests: which TTFT targets they missed, as bits (``quantile``).
``blocks`` KV blocks of the prefix cache, or runs of them, ``BLOCK`` numbers each; number 0 is the sentinel of the
           free list.
"""

from __future__ import annotations

# ---- scalars of the engine ----
(
    CLOCK,
    BUSY_UNTIL,
    STEPS,  # passes with a batch
    IDLE_PASSES,  # passes since a token was computed for the first time
    DECODE_STEPS,  # decode steps since the last prefill batch (prefill-first)
    NEXT_ARRIVAL,  # requests below have arrived
    NEXT_SETTINGS,
    NEXT_WEIGHTS,
    WEIGHTS,  # row of the weights in force
    RUNNING,
    WAITING,
    FREE,  # free blocks, negative while a smaller cache preempts
    PREEMPTED,  # victims since the last pass ended
    YIELDED,  # those of them that made room for a head
    YIELDED_TO,  # that head
    BATCH,  # requests in the batch at hand
    FIRST_FLYING,  # which of the two places for steps in flight is the older one
    FLYING,  # steps in flight: 0, 1 or 2
    FREE_SLOTS,
    ACTIVE,  # queues that are not empty
    LAST_TO_LEAVE,  # tenant whose queue emptied last, NONE at first
    CAP,  # most prefill tokens of one request in the pass at hand
    HIT,  # blocks of the hit that was looked up last
    EVICTABLE,  # those of them that nobody references
    DOOMED,  # blocks that leave the cache as soon as they are free
    NEXT_BLOCK,  # number of the next new block
    CACHE_BLOCKS,  # blocks of the cache by the settings in force
    SECOND,  # second of the step sums at hand
    SECOND_OFFSET,  # instant 0 of the clock, in ps after a whole second
    ROWS,  # rows of step sums that are complete
    READY,  # 1 once queues and caches have their first state
    SUMMING,  # 1 if steps are summed
    LEAPING,  # 1 if the engine may leap
    MODEL_LEN_VARIES,
    OWN_WEIGHTS,  # 1 if any request carries a weight of its own
    # the cohort: decoders that advance together
    COHORT,  # 1 while decoders are counted together
    TICK,  # decode steps of the cohort since the start
    PHASE,  # TICK mod block size
    MEMBERS,
    OFFSETS,  # sum over members of computed tokens minus TICK
    GROWING,  # members whose blocks grow as they decode
    NEXT_FINISH,  # TICK at which the next member samples its last token
    PARTS,  # running prefills, which are not members
    LAG,  # ticks whose samples have not arrived: 1 with async scheduling
    DUE,  # slots that wait for something from the step in flight
    NEXT_DUE,  # slots that wait for something from the step at hand
    DUE_HALF,  # which half of ``dues`` holds the former
    LISTED,  # blocks in the runs of the free list
    SPARE_RUN,  # first of the runs that are not in use
    NEXT_BAD,  # the first request from NEXT_ARRIVAL on that is refused at the door
    FLOOR_ENDS,  # instant at which the window of the type floors ends
    FAILED,  # 1 + the request for which a user's rank raised an error
    HOLD,  # passes until the engine tries to leap again
    PASSES,  # after which the kernel returns, to tell how far it is
    PREFIX_TOKENS,  # tokens that one prefix id stands for
    STEPPER,  # machine code of these parts
    DECIDER,
    VIRTUAL,  # wfq: the largest start tag served; drr and round-robin: the last visit of the ring
    STALE,  # queues whose rank must be reckoned anew
    STALE_AT,  # where in ``active`` these are listed; so many places ``ranks`` has twice
    CONTROL,  # machine code of ``control``; 0: there are no controls
    GATED,  # 1 if controls may bar heads
    STATES,  # rows of settings; behind them as many for the emergency in which the earliest deadline goes first
    IN_MODE,  # 1 while that is on
) = range(64)

# ---- where the arrays stand: address, length or rows, columns of a matrix ----
LINK = 3
LINKS = 64
(
    TO_RUN,
    TO_FREE_SLOTS,
    TO_BATCH,
    TO_FLIGHTS,
    TO_PARTS,
    TO_DUES,
    TO_CALENDAR,
    TO_MARKS,
    TO_PHASES,
    TO_OUT,
    TO_WAY,
    TO_KEPT,
    TO_QUEUES,
    TO_ACTIVE,
    TO_RANKS,
    TO_MISSES,
    TO_HEAD,
    TO_QUEUE_ROWS,
    TO_QUEUE_FACTS,
    TO_BLOCKS,
    TO_TABLE,
    TO_OWN,
    TO_FOUND,
    TO_CHAINS,
    TO_CHAIN_TABLE,
    TO_PREFIX_START,
    TO_PREFIX_IDS,
    TO_SETTINGS,
    TO_WEIGHTS_AT,
    TO_WEIGHTS,
    TO_ARRIVAL,
    TO_PROMPT,
    TO_CUT,
    TO_PRIORITY,
    TO_REQUEST_WEIGHT,
    TO_SUMS,
    TO_ROWS,
    # where there are controls (``controls.places``):
    TO_C,
    TO_S,
    TO_T,
    TO_W,
    TO_QUEUES_OF,  # by policy and request of the workload: its queue
    TO_PREFIX_OF,  # where its prefix begins
) = range(LINKS, LINKS + 43 * LINK, LINK)

# ---- settings in force: a copy of one row of the settings table ----
SETTINGS = LINKS + 43 * LINK
(
    BASE_PS,
    PREFILL_PS,
    DECODE_PS,
    CONTEXT_PS,
    MOST_RUNNING,
    BUDGET,
    MODEL_LEN,
    BLOCK_SIZE,
    USABLE,
    WATERMARK,
    CHUNKED,
    THRESHOLD,
    ADAPTIVE,
    PREFIX,  # BLOCKS or RUNS under prefix caching
    ASYNC,
    FULL_PROMPT,  # scheduler_reserve_full_isl
    PREFILL_FIRST,
    INTERVAL,
    RESERVE,  # reserve_full_kv
    POLICY,
    POLICY_NUMBER,  # equal for equal policy specs
    QUEUE_ROW,  # row of ``queue_of`` that says in which queue a request waits, NONE: all in queue 0
    ENTRIES,  # entries of ``queues``: the queues, then tenants and types if service is counted apart from queues
    PROMPT_COST,
    OUTPUT_COST,
    LIFT,  # 1 if a tenant that returns is lifted to the least service among the waiting
    SERVED,  # 1 if tenants' service is counted
    FIRST_TYPE,  # entry of the first type under type floors, else NONE
    FLOOR_WINDOW,
    DYNAMIC,  # 1 if the ranks of heads change while they wait
    RANK_ADDRESS,  # machine code of a user's rank
    SHIFT,  # log2 of the block size, NONE if it is no power of two
    VICTIM,
    APART,  # 1 if tenants have entries of their own beside their queues
    BY_NAME,  # 1 if equal ranks of two tenants go by name
    BOTH_HALVES,  # 1 if the second half of ``ranks`` is used
    LISTENS,  # of what the policy hears: FIRST_TOKENS, FINISHES
    ARRIVALS,  # 1 if what happens at an arrival depends on when it is
    TENANTS,
    QUANTUM,  # drr: scaled like service
    PREDICTED,  # wfq: output tokens expected of a tenant of which nobody has finished
    SLACK,
    ALPHA,
    GAMMA,
    HISTORY,
    ALLOWED_50,  # quantile: misses from which a target counts
    ALLOWED_90,
    ALLOWED_99,
    WIDEST,  # quantile: place of the target that counts if none does
    GIVES_WAY,  # priority: by how much more than this a running request must be less urgent to be preempted, or NO_CAP
    QUEUE_LIMIT,  # NO_CAP if there is none
    TENANT_LIMIT,
    QUEUE_TIME,
    BY_COST,  # wfq: 1 if prompts are charged with their cost
    DRAFT_PS,  # what a draft adds to a step, the target's part included
    VERIFY_PS,  # the target's part
    OLDER,  # rules of older releases that hold, as bits
    ESTIMATING,  # 1 if the policy goes by estimates of costs
    LEARNING,  # weight of the newest ratio in their correction, in millionths; 0: they are not corrected
    AT_PS,
) = range(SETTINGS, SETTINGS + 60)
SETTINGS_WIDTH = 60
LONE_CAPPED, VICTIM_TOKENS_LOST, SELF_PREEMPTION_ENDS, FREES_TO_BACK = 1, 2, 4, 8

# ---- pools, drafts, experts, precisions (``extras``): only ``extra_stepper`` and ``extra_kernel`` look at these ----
EXTRAS = True  # ``build`` makes it false for all other parts, so that they are compiled as if there were none
ESTIMATES = True  # likewise: only ``estimating_decider`` knows of estimates
EXTRA = SETTINGS + SETTINGS_WIDTH
(
    HANDED_OVER,  # 1 if requests arrive with their prompt computed
    DRAFTS,  # tokens drafted at each step of a request that decodes
    TOKEN_COSTS,  # INDEPENDENT or SAME_EXPERTS where tokens differ in cost
    PRECISION_SWITCH,  # 1 if all that runs has one precision
    DROPS,  # 1 if a switch of precision drops the prefix cache
    PRECISION,  # of the last batch, NONE at first
) = range(EXTRA, EXTRA + 6)
EXTRA_LINKS = EXTRA + 6
(
    TO_COST,  # by request
    TO_DRAW,
    TO_PRECISION,
    TO_KIND,  # its type
    TO_TENANT,
    TO_DETAILS,  # rows of ``EngineResult.details``
    TO_BY_KIND,
    TO_BY_TENANT,
    # where costs are estimated:
    TO_ESTIMATE,  # by request
    TO_COST_CLASS,
    TO_CORRECTIONS,  # by class
) = range(EXTRA_LINKS, EXTRA_LINKS + 11 * LINK, LINK)
SCALARS = EXTRA_LINKS + 11 * LINK
INDEPENDENT, SAME_EXPERTS = 1, 2
DRAFTED_COUNT, REJECTED, DECODE_STEPS_OF, WASTED, HELD_UP, IMPOSED, SWITCHED = range(7)
ACCEPTED, MEAN, SPREAD = range(3)  # rows of TO_BY_KIND

# ---- prefix caching ----
BLOCKS = 1  # every block is kept track of (``prefix``)
RUNS = 2  # no two requests share a prefix (``segments``)

# ---- policies ----
(
    FCFS,
    PRIORITY,
    VTC,
    TYPE_PRIORITY,
    SJF,
    USER,
    DRR,
    WFQ,
    EDF,
    WFQ_EDF,
    QUANTILE,
    QOSERVE,
    ROUND_ROBIN,
    RPM_LIMIT,
    LEAST_COST,  # sjf by cost or by an estimate
    SJF_OF_MANY,  # sjf and vtc where there are many queues
    VTC_OF_MANY,
) = range(17)
KEEPS_RANKS = DRR  # policies from here on are asked by address (``decider``), and these are the questions
BEGIN, LOWEST, TURN, FINISH, FIRST_TOKEN_CAME, CHANGE = range(6)
FIRST_TOKENS, FINISHES = 1, 2

# ---- what controls are asked and told ----
(
    OPEN,
    ARRIVED,
    TURNED_AWAY,
    TICKED,
    EXPIRED,
    BAR_HEADS,
    WAKES,
    ADMITTED,
    CAME_BACK,
    FIRST_TOKEN_SEEN,
    TOKENS_SEEN,
    DONE_WITH,
    MAY_GIVE_WAY,
    DENIES,
    GAVE_WAY,
    LOST_BLOCKS,
    IN_HOST,
    STARTED,
    NEW_SETTINGS,
    AT_GATEWAY,
) = range(20)
SWITCHES, FILLED_UP = 1, 2  # what TICKED answers, as bits: the mode begins or ends; the record must be taken away

LAST_VICTIM, PRIORITY_VICTIM, LEAST_VICTIM = range(3)

# ---- running requests ----
(
    REQUEST,
    PROMPT,
    OUTPUT,
    KNOWN,  # of a member of the cohort: not kept up
    COMPUTED,  # of a member of the cohort: minus TICK
    BEST,
    OWNED,
    PREVIOUS,
    NEXT,
    IN_FLIGHT,
    TOKENS,
    DONE,  # tokens computed in all, recomputed ones included; of a member: minus TICK
    FINISH,  # of a member: TICK at which it samples its last token
    LATER,  # of a member: neighbours among those of the same FINISH
    EARLIER,
    FLAGS,
) = range(16)
SLOT = 16
FILLED = FINISH  # under prefix caching, of one that is no member: blocks that are full of known tokens
JOINED = BEST  # of a member: its tokens when it joined, less one if the block that they fill was not cached then
MEMBER = 1
HELD = 2  # the whole KV of the request is held from its admission on
RESUMED = 4  # after a preemption
RATED = 8  # its tenant's service grows by its tokens at every tick
# where samples arrive a pass later (async), what this slot waits for:
FIRST = 16  # its first token
ENDING = 32  # its last token
IDLE = 64  # nothing: its first tick as a member is still to come
DRAFTED = IDLE  # where drafts are made, and so nothing leaps: some go with the tokens that it is given
FLAG_BITS = 7  # above them stands the request's queue

# ---- results ----
(
    SCHEDULED,
    FIRST_TOKEN,
    FINISHED,
    STATUS,
    REASON,
    PREEMPTIONS,
    RECOMPUTED,
    CACHED,
    COMPUTED_TOKENS,
) = range(9)
RESULTS = 9

# ---- by request ----
FOLLOWER, PLACE = range(2)
WAY = 2
NEW, BACK, GONE = -1, -2, -3  # PLACE of one that waits, at first or again, and of one that is done; else it is a slot
(
    KEPT_KNOWN,
    KEPT_BEST,
    KEPT_RUN,
    KEPT_TAG,  # wfq: start tag, NONE if the request was not admitted under the policy in force
    KEPT_EXPECTED,  # wfq: output tokens that its tenant was charged with; the whole cost where that is estimated
    KEPT_INVERSE,  # wfq: and the inverse weight
) = range(6)
KEPT = 6

# ---- waiting queues ----
(
    HEAD,
    TAIL,
    ACTIVE_AT,
    RANK,  # of a type: its floor
    SERVICE,  # wfq: start tag of the tenant's next request; drr: deficit
    RATE,
    OWNER,  # the entry that holds the service of the queue's tenant
    OF_TYPE,  # the entry of the queue's type under type floors
    TENANT,
    TYPE,
    PRIORITY_OF,
    WAITERS,  # of an owner: its queues that are not empty
    # where ranks are kept (``ranking``):
    FRESH,  # 1 if ``ranks`` knows the head
    TARGET,  # TTFT target that deadlines are made of; of an owner under quantile: the one that counts now
    CACHED_NOW,  # drr: tokens of the head that the prefix cache holds
    SINCE,  # of an owner, drr and round-robin: the visit up to which its turns are counted
    TARGET_50,  # of an owner under quantile
    TARGET_90,
    TARGET_99,
    MISSED_50,
    MISSED_90,
    MISSED_99,
    OLDEST,  # place of its oldest outcome in ``misses``
    BARRED,  # 1 if controls bar the head
) = range(24)
QUEUE = 24
CAP_OF = TARGET  # of a type under floors: tokens from which it is barred
FINISHED_COUNT, OUTPUT_SUM = TARGET_50, TARGET_90  # of an owner under wfq: of its finished requests
QUEUE_FACTS = (
    10  # rows of ``queue_facts`` by policy: rank, owner, type's entry, tenant, type, priority, TARGET, TARGET_50 ...
)

# ---- a head as a user's rank sees it: policies.user.HEAD_FIELDS, then whether the rank raised an error ----
HEAD_FIELDS = 12
HEAD_FAILED = 12

# ---- blocks of the prefix cache ----
BEFORE, AFTER, REFERENCES, KEY, HOLDER_BEFORE, HOLDER_AFTER, IS_CACHED = range(7)
BLOCK = 8
RUN_BLOCKS, RUN_OWNER = REFERENCES, KEY  # of a run of blocks
INDEX_BITS = 22  # a key is a number of a prefix or request, shifted by these, and the block's index in it

# ---- sums of steps by second and class ----
DECODE_CLASS, MIXED_CLASS, PREFILL_CLASS = range(3)  # the names' order
SUM_STEPS, SUM_TOKENS, SUM_RUNNING, SUM_WAITING, SUM_USED, SUM_PREEMPTED = range(6)
SUMS = 6
ROW = 8  # second, class, sums

PLACES_MIN = 64 * 64  # of the calendar
GROUP_BITS = 5
GROUP = 1 << GROUP_BITS  # numbers of ``ranks`` of which the least is known

NONE = -1
HORIZON_PS = 2**63 - 1 - 2 * 86_400 * 10**12  # no pass starts later: a step takes at most a day
INDEX_WIDTH = 40
INDEX = 2**INDEX_WIDTH - 1  # ``index & INDEX`` is the same index, and the compiler sees that it counts from the start
NO_CAP = 2**62
FOREVER = 2**63 - 1
BEFORE_ALL = -(2**63)
