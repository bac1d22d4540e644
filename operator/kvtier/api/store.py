"""``spec.store``: the Valkeys."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue, StringConstraints

from kvtier.api.base import Change, Model, extra, rule
from kvtier.api.scalars import (
    CPU_PATTERN,
    MEMORY_PATTERN,
    Cpu,
    Image,
    Integer,
    Memory,
    Subdomain,
    parse_quantity,
)

MIN_MEMORY_BYTES = 64 * 2**20
MAX_MEMORY_BYTES = 16 * 2**40
MIN_CPU_MILLICORES = 10
MAX_CPU_CORES = 256
RESERVED_LABEL_PREFIXES = ("kvtier.dev/", "app.kubernetes.io/")
RESERVED_ANNOTATION_PREFIXES = (
    "kvtier.dev/",
    "kubernetes.io/",
    "container.apparmor.security.beta.kubernetes.io/",
)
_ROLL = extra(Change.ROLL)
_KEYS_ARE_QUALIFIED = rule(
    "self.all(k, !format.qualifiedName().validate(k).hasValue())",
    "a key is a name such as example.com/team",
)
_VALUES_ARE_LABELS = rule(
    "self.all(k, !format.labelValue().validate(self[k]).hasValue())",
    "a value has at most 63 letters, digits, '-', '_' or '.', and starts and ends with a letter"
    " or digit",
)


def _not_reserved(prefixes: tuple[str, ...]) -> dict[str, JsonValue]:
    starts = " || ".join(f"k.startsWith('{prefix}')" for prefix in prefixes)
    return rule(f"!self.exists(k, {starts})", f"reserved prefix: {', '.join(prefixes)}")


class Eviction(StrEnum):
    LRU = "LRU"
    LFU = "LFU"


class StoreVersion(StrEnum):
    V8_1 = "8.1"
    V9_1 = "9.1"


_TOLERATION_RULES = [
    rule(
        "(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')",
        "without a key the operator must be Exists",
    ),
    rule(
        "!has(self.key) || self.key == '' || !format.qualifiedName().validate(self.key).hasValue()",
        "key must be a name such as example.com/gpu",
    ),
    rule(
        "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
        "with operator Exists there is no value",
    ),
    rule(
        "!has(self.value) || !format.labelValue().validate(self.value).hasValue()",
        "value must be a label value: letters, digits, '-', '_' or '.'",
    ),
    rule(
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        "tolerationSeconds needs effect NoExecute",
    ),
]


class Toleration(Model):
    """A Kubernetes toleration."""

    model_config = ConfigDict(json_schema_extra=extra(rules=_TOLERATION_RULES))

    key: str | None = Field(
        default=None,
        max_length=317,
        description="Taint key. Without it (and with operator Exists) every key.",
        json_schema_extra=_ROLL,
    )
    operator: Literal["Exists", "Equal"] | None = Field(
        default=None,
        description="Exists takes any value, Equal (the default) this one.",
        json_schema_extra=_ROLL,
    )
    value: str | None = Field(
        default=None,
        max_length=63,
        description="Taint value. Empty with operator Exists.",
        json_schema_extra=_ROLL,
    )
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Taint effect. Without it every effect.", json_schema_extra=_ROLL
    )
    toleration_seconds: Integer | None = Field(
        default=None,
        ge=0,
        le=2**31 - 1,
        description="With effect NoExecute: how long the taint is tolerated, in seconds.",
        json_schema_extra=_ROLL,
    )


class LocalObjectReference(Model):
    """A Secret in the tier's namespace."""

    name: Subdomain = Field(
        description="Name of a Secret in the tier's namespace.",
        json_schema_extra=_ROLL,
    )


class Tls(Model):
    """TLS between the ranks and all who connect to them."""

    secret_name: Subdomain = Field(
        description="Name of a kubernetes.io/tls Secret in the tier's namespace, with tls.crt,"
        " tls.key and ca.crt. Its certificate must name every rank: <tier>-r<k>.<namespace>.svc,"
        " or *.<namespace>.svc. Renewed contents of the same Secret restart nothing.",
        json_schema_extra=_ROLL,
    )


LabelMap = dict[
    Annotated[str, StringConstraints(min_length=1, max_length=317)],
    Annotated[str, StringConstraints(max_length=63)],
]
AnnotationMap = dict[
    Annotated[str, StringConstraints(min_length=1, max_length=317)],
    Annotated[str, StringConstraints(max_length=1024)],
]


_STORE_RULES = [
    rule(
        "self.ioThreads == 1 || (type(self.cpu) == string ?"
        " (self.cpu.matches('^[0-9]{1,4}$') && int(self.cpu) >= self.ioThreads + 1) :"
        " int(self.cpu) >= self.ioThreads + 1)",
        "with ioThreads above 1, cpu must be whole cores (a number without unit), at least"
        " ioThreads + 1",
    )
]


class Store(Model):
    model_config = ConfigDict(json_schema_extra=extra(rules=_STORE_RULES))

    image: Image | None = Field(
        default=None,
        description="Image with valkey-server and valkey-cli. Without it the operator's image"
        " for version.",
        json_schema_extra=_ROLL,
    )
    version: StoreVersion = Field(
        default=StoreVersion.V9_1,
        description="Valkey series that the image holds. Decides which settings are written.",
        json_schema_extra=_ROLL,
    )
    memory_per_rank: Memory = Field(
        description="Memory limit of one rank's container, such as 64Gi. What is left for KV is"
        " less: buffers and overhead are kept free.",
        json_schema_extra=extra(
            Change.ROLL,
            rules=[
                rule(
                    "type(self) == string ? (!self.matches(r'"
                    + MEMORY_PATTERN
                    + "') || (quantity(self).compareTo(quantity('64Mi')) >= 0 &&"
                    " quantity(self).compareTo(quantity('16Ti')) <= 0)) :"
                    f" (int(self) >= {MIN_MEMORY_BYTES} && int(self) <= {MAX_MEMORY_BYTES})",
                    "from 64Mi to 16Ti",
                )
            ],
        ),
    )
    cpu: Cpu = Field(
        default="1",
        description="CPU request and limit of one rank's container, in cores such as 2 or 500m.",
        json_schema_extra=extra(
            Change.ROLL,
            rules=[
                rule(
                    "type(self) == string ? (!self.matches(r'"
                    + CPU_PATTERN
                    + "') || (quantity(self).compareTo(quantity('10m')) >= 0 &&"
                    " quantity(self).compareTo(quantity('256')) <= 0)) :"
                    f" (int(self) >= 1 && int(self) <= {MAX_CPU_CORES})",
                    "from 10m to 256",
                )
            ],
        ),
    )
    io_threads: Integer = Field(
        default=1,
        ge=1,
        le=64,
        description="Valkey's io-threads, the main thread included. Above 1 it needs ioThreads + 1"
        " cores.",
        json_schema_extra=extra(Change.LIVE_FROM_9_1),
    )
    eviction: Eviction = Field(
        default=Eviction.LRU,
        description="Which chunks go first when memory is full: least recently (LRU) or least"
        " frequently (LFU) used.",
        json_schema_extra=extra(Change.LIVE),
    )
    tls: Tls | None = Field(
        default=None,
        description="TLS on every connection to a rank; plain connections are refused then."
        " Without it there is none.",
        json_schema_extra=_ROLL,
    )
    tolerations: list[Toleration] = Field(
        default_factory=list,
        max_length=32,
        description="Taints that rank pods tolerate. GPU taints are tolerated anyway.",
        json_schema_extra=_ROLL,
    )
    node_selector: LabelMap = Field(
        default_factory=dict,
        max_length=16,
        description="Labels of the nodes that ranks may run on.",
        json_schema_extra=extra(Change.ROLL, rules=[_KEYS_ARE_QUALIFIED, _VALUES_ARE_LABELS]),
    )
    priority_class_name: Subdomain | None = Field(
        default=None,
        description="Priority class of rank pods.",
        json_schema_extra=_ROLL,
    )
    image_pull_secrets: list[LocalObjectReference] = Field(
        default_factory=list,
        max_length=8,
        description="Secrets that the image is pulled with.",
        json_schema_extra=extra(Change.ROLL, list_keys=["name"]),
    )
    labels: LabelMap = Field(
        default_factory=dict,
        max_length=16,
        description="More labels of rank pods.",
        json_schema_extra=extra(
            Change.ROLL,
            rules=[
                _KEYS_ARE_QUALIFIED,
                _VALUES_ARE_LABELS,
                _not_reserved(RESERVED_LABEL_PREFIXES),
            ],
        ),
    )
    annotations: AnnotationMap = Field(
        default_factory=dict,
        max_length=16,
        description="More annotations of rank pods.",
        json_schema_extra=extra(
            Change.ROLL,
            rules=[_KEYS_ARE_QUALIFIED, _not_reserved(RESERVED_ANNOTATION_PREFIXES)],
        ),
    )

    @property
    def memory_bytes(self) -> int:
        """The container's memory limit in bytes."""
        return int(parse_quantity(self.memory_per_rank))
