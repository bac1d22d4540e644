"""Condition types and reasons: the words that a person searches for.

Every reason has a section of the same name in docs/runbooks.md. A name never changes its meaning;
a new situation gets a new name.
"""

from typing import Final

# Condition types.
SPEC_VALID: Final = "SpecValid"
STORE_READY: Final = "StoreReady"
GENERATION_CURRENT: Final = "GenerationCurrent"
READY: Final = "Ready"
PLACEMENT_ACCEPTED: Final = "PlacementAccepted"
EARNING_ITS_KEEP: Final = "EarningItsKeep"
WARM: Final = "Warm"
ADMISSION_ENFORCED: Final = "AdmissionEnforced"

# SpecValid
VALID: Final = "Valid"
INVALID_SPEC: Final = "InvalidSpec"

# StoreReady
ALL_RANKS_READY: Final = "AllRanksReady"
RANKS_NOT_READY: Final = "RanksNotReady"
ROLLING: Final = "Rolling"
NAME_CONFLICT: Final = "NameConflict"
SETTINGS_NOT_APPLIED: Final = "SettingsNotApplied"
APPLY_FAILED: Final = "ApplyFailed"
PAUSED: Final = "Paused"
PLACEMENT_REJECTED: Final = "PlacementRejected"
TLS_SECRET_NOT_FOUND: Final = "TLSSecretNotFound"
TLS_SECRET_INVALID: Final = "TLSSecretInvalid"
TLS_KEY_MISMATCH: Final = "TLSKeyMismatch"
TLS_CERTIFICATE_UNTRUSTED: Final = "TLSCertificateUntrusted"
TLS_CERTIFICATE_EXPIRED: Final = "TLSCertificateExpired"
TLS_NAMES_MISSING: Final = "TLSNamesMissing"
TLS_RANK_UNTRUSTED: Final = "TLSRankUntrusted"

TLS_SECRET_NOT_USABLE: Final = (
    TLS_SECRET_NOT_FOUND,
    TLS_SECRET_INVALID,
    TLS_KEY_MISMATCH,
    TLS_CERTIFICATE_UNTRUSTED,
    TLS_CERTIFICATE_EXPIRED,
    TLS_NAMES_MISSING,
)
"""With any of these nothing that mounts the certificate is made or changed."""

# GenerationCurrent
LIVE: Final = "Live"
RECORD_UNREADABLE: Final = "RecordUnreadable"
NOT_PUBLISHED: Final = "NotPublished"
GENERATION_FENCED: Final = "GenerationFenced"
GENERATION_CONTAMINATED: Final = "GenerationContaminated"
POOL_DRIFTED: Final = "PoolDrifted"

# Ready
TIER_READY: Final = "TierReady"
NOT_READY: Final = "NotReady"

# PlacementAccepted and EarningItsKeep: what is not known.
NOT_MEASURED: Final = "NotMeasured"
LINK_NOT_DECLARED: Final = "LinkNotDeclared"
T0_NOT_DECLARED: Final = "T0NotDeclared"
LOWER_BOUND_ONLY: Final = "LowerBoundOnly"

# Where engines and ranks are: findings named in PlacementAccepted.
DOMAINS_CONTRADICT: Final = "DomainsContradict"
DOMAIN_LABELS_MISSING: Final = "DomainLabelsMissing"
POOL_LEFT_DOMAIN: Final = "PoolLeftDomain"
POOL_SPANS_DOMAINS: Final = "PoolSpansDomains"
RANKS_OUTSIDE_DOMAIN: Final = "RanksOutsideDomain"
RANKS_ON_CORDONED_NODES: Final = "RanksOnCordonedNodes"
MEMORY_DOES_NOT_FIT: Final = "MemoryDoesNotFit"

# What the pods of the pool run.
IDENTITY_UNREADABLE: Final = "IdentityUnreadable"
ADAPTERS_SHARE_KEYS: Final = "AdaptersShareKeys"
ANOTHER_SECRET: Final = "AnotherSecret"
POOL_REASONS: Final = (ANOTHER_SECRET, POOL_DRIFTED, IDENTITY_UNREADABLE, ADAPTERS_SHARE_KEYS)

# How many engines there are: a finding named in PlacementAccepted.
UNDERSIZED_FOR_ZERO_HIT: Final = "UndersizedForZeroHit"

TOPOLOGY_REASONS: Final = (
    DOMAINS_CONTRADICT,
    DOMAIN_LABELS_MISSING,
    POOL_LEFT_DOMAIN,
    POOL_SPANS_DOMAINS,
    RANKS_OUTSIDE_DOMAIN,
    RANKS_ON_CORDONED_NODES,
    MEMORY_DOES_NOT_FIT,
)

# PlacementAccepted: what the chain of checks found.
ACCEPTED: Final = "Accepted"
COPY_ON_EVERY_RANK: Final = "CopyOnEveryRank"
REVISION_MOVES: Final = "RevisionMoves"
MEMORY_TOO_SMALL: Final = "MemoryTooSmall"
L1_TOO_SMALL: Final = "L1TooSmall"
NO_PROMPT_LONG_ENOUGH: Final = "NoPromptLongEnough"
HITS_DO_NOT_FIT: Final = "HitsDoNotFit"
BELOW_BREAK_EVEN: Final = "BelowBreakEven"
NO_HIT_LONG_ENOUGH: Final = "NoHitLongEnough"
HITS_LOSE_ON_AVERAGE: Final = "HitsLoseOnAverage"
ROUND_TRIP_TOO_LONG: Final = "RoundTripTooLong"
CHUNKS_UNEVEN: Final = "ChunksUneven"
GPU_QUEUE_UNSTABLE: Final = "GPUQueueUnstable"
LINK_QUEUE_UNSTABLE: Final = "LinkQueueUnstable"
RANKS_CONTENDED: Final = "RanksContended"
CAPACITY_BELOW_WORKING_SET: Final = "CapacityBelowWorkingSet"
LINK_TOO_SLOW_FOR_POOL: Final = "LinkTooSlowForPool"
REQUEST_TIMEOUT_TOO_SHORT: Final = "RequestTimeoutTooShort"
STALL_ABOVE_TARGET: Final = "StallAboveTarget"
PREFILL_RATE_OFF: Final = "PrefillRateOff"
CONTRADICTORY_WORKLOAD: Final = "ContradictoryWorkload"
IMPLAUSIBLE_FIGURE: Final = "ImplausibleFigure"

FINDING_REASONS: Final = (
    COPY_ON_EVERY_RANK,
    REVISION_MOVES,
    MEMORY_TOO_SMALL,
    L1_TOO_SMALL,
    NO_PROMPT_LONG_ENOUGH,
    HITS_DO_NOT_FIT,
    BELOW_BREAK_EVEN,
    NO_HIT_LONG_ENOUGH,
    HITS_LOSE_ON_AVERAGE,
    ROUND_TRIP_TOO_LONG,
    GPU_QUEUE_UNSTABLE,
    LINK_QUEUE_UNSTABLE,
    RANKS_CONTENDED,
    CAPACITY_BELOW_WORKING_SET,
    LINK_TOO_SLOW_FOR_POOL,
    REQUEST_TIMEOUT_TOO_SHORT,
    STALL_ABOVE_TARGET,
    CHUNKS_UNEVEN,
    PREFILL_RATE_OFF,
    CONTRADICTORY_WORKLOAD,
    IMPLAUSIBLE_FIGURE,
)

# EarningItsKeep: the verdicts, by their own names.
PAYS: Final = "Pays"
PAYS_WHEN_LONG: Final = "PaysWhenLong"
PAYS_UNDER_LOAD: Final = "PaysUnderLoad"

# Warm: does the tier serve hits?
SERVING_HITS: Final = "ServingHits"
COLD: Final = "Cold"
STORM: Final = "Storm"
RECOVERING: Final = "Recovering"
HITS_NOT_KNOWN: Final = "HitsNotKnown"

# AdmissionEnforced: does anybody hold the limit in a storm?
ENFORCED: Final = "Enforced"
OBSERVE_ONLY: Final = "ObserveOnly"
NO_LIMITER: Final = "NoLimiter"
LIMITER_UNREACHABLE: Final = "LimiterUnreachable"
ADAPTER_UNAVAILABLE: Final = "AdapterUnavailable"
ROUTE_NOT_FOUND: Final = "RouteNotFound"
POLICY_CONFLICT: Final = "PolicyConflict"
POLICY_NOT_ACCEPTED: Final = "PolicyNotAccepted"

# Events that are no condition.
STORM_BEGAN: Final = "StormBegan"
STORM_RECOVERING: Final = "StormRecovering"
STORM_OVER: Final = "StormOver"
STORM_NOT_CONFIRMED: Final = "StormNotConfirmed"
POLICY_WRITTEN: Final = "PolicyWritten"
POLICY_REMOVED: Final = "PolicyRemoved"
CREATED: Final = "Created"
APPLIED: Final = "Applied"
REPAIRED: Final = "Repaired"
RESTARTING_ALL_RANKS: Final = "RestartingAllRanks"
RESTARTING_RANKS: Final = "RestartingRanks"
RANK_DOWN: Final = "RankDown"
RANK_BACK: Final = "RankBack"
NODE_LOST: Final = "NodeLost"
DOMAIN_CHOSEN: Final = "DomainChosen"
MOVING_RANKS: Final = "MovingRanks"
CERTIFICATE_RELOADED: Final = "CertificateReloaded"
GENERATION_LIVE: Final = "GenerationLive"
GENERATION_PENDING: Final = "GenerationPending"
GENERATION_PURGED: Final = "GenerationPurged"
GENERATION_GONE: Final = "GenerationGone"
CREDENTIALS_ROTATED: Final = "CredentialsRotated"
VERDICT_CHANGED: Final = "VerdictChanged"
PROBED: Final = "Probed"
PROBE_FAILED: Final = "ProbeFailed"
POD_NOT_INJECTED: Final = "PodNotInjected"

EVENT_REASONS: Final = (
    CREATED,
    APPLIED,
    REPAIRED,
    RESTARTING_ALL_RANKS,
    RESTARTING_RANKS,
    RANK_DOWN,
    RANK_BACK,
    NODE_LOST,
    DOMAIN_CHOSEN,
    MOVING_RANKS,
    CERTIFICATE_RELOADED,
    GENERATION_LIVE,
    GENERATION_PENDING,
    GENERATION_FENCED,
    GENERATION_CONTAMINATED,
    GENERATION_PURGED,
    GENERATION_GONE,
    CREDENTIALS_ROTATED,
    VERDICT_CHANGED,
    PROBED,
    PROBE_FAILED,
    POD_NOT_INJECTED,
    STORM_BEGAN,
    STORM_RECOVERING,
    STORM_OVER,
    STORM_NOT_CONFIRMED,
    POLICY_WRITTEN,
    POLICY_REMOVED,
)

CONDITION_REASONS: Final[dict[str, tuple[str, ...]]] = {
    SPEC_VALID: (VALID, INVALID_SPEC, RECORD_UNREADABLE),
    STORE_READY: (
        ALL_RANKS_READY,
        RANKS_NOT_READY,
        ROLLING,
        NAME_CONFLICT,
        SETTINGS_NOT_APPLIED,
        APPLY_FAILED,
        PAUSED,
        PLACEMENT_REJECTED,
        *TLS_SECRET_NOT_USABLE,
        TLS_RANK_UNTRUSTED,
    ),
    GENERATION_CURRENT: (
        LIVE,
        NOT_PUBLISHED,
        GENERATION_FENCED,
        GENERATION_CONTAMINATED,
        POOL_DRIFTED,
    ),
    READY: (TIER_READY, NOT_READY),
    PLACEMENT_ACCEPTED: (
        ACCEPTED,
        LINK_NOT_DECLARED,
        T0_NOT_DECLARED,
        *FINDING_REASONS,
        *TOPOLOGY_REASONS,
        *POOL_REASONS,
        UNDERSIZED_FOR_ZERO_HIT,
    ),
    EARNING_ITS_KEEP: (
        PAYS,
        PAYS_WHEN_LONG,
        PAYS_UNDER_LOAD,
        BELOW_BREAK_EVEN,
        LINK_QUEUE_UNSTABLE,
        NOT_MEASURED,
        LINK_NOT_DECLARED,
        T0_NOT_DECLARED,
        LOWER_BOUND_ONLY,
    ),
    WARM: (SERVING_HITS, COLD, STORM, RECOVERING, HITS_NOT_KNOWN),
    ADMISSION_ENFORCED: (
        ENFORCED,
        OBSERVE_ONLY,
        NO_LIMITER,
        LIMITER_UNREACHABLE,
        ADAPTER_UNAVAILABLE,
        ROUTE_NOT_FOUND,
        POLICY_CONFLICT,
        POLICY_NOT_ACCEPTED,
        NAME_CONFLICT,
    ),
}
"""The reasons that each condition type can carry."""
