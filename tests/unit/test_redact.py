"""What is taken out of texts of others, and what stays."""

import base64
import json
import subprocess
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.redact import (
    REDACTED,
    is_secret_name,
    new_token,
    redact,
    redact_foreign,
    redact_tree,
)

TOKEN = new_token()


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def key(algorithm: str, *options: str) -> str:
    command = ["openssl", "genpkey", "-algorithm", algorithm, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


RSA, EC = key("RSA"), key("EC", "-pkeyopt", "ec_paramgen_curve:P-256")
BODY = "".join(RSA.splitlines()[1:-1])


@pytest.mark.parametrize(
    "text",
    [
        TOKEN,
        TOKEN.removeprefix("kvtt-"),
        f"user {TOKEN} on >x",
        encoded(TOKEN),
        encoded(encoded(TOKEN)),
        RSA,
        EC,
        RSA.replace("\n", "\\n"),
        json.dumps(json.dumps({"key": RSA})),
        "\n".join(RSA.splitlines()[1:-1]),
        # A log that begins in the middle of one.
        "\n".join(RSA.splitlines()[9:]),
        BODY,
        "".join(EC.splitlines()[1:-1]),
        encoded(RSA),
        "\n".join(textwrap.wrap(encoded(RSA), 76)),
    ],
    # What is random has no place in the name of a test.
    ids=[f"form {number}" for number in range(15)],
)
def test_tokens_and_keys_are_found_in_every_form(text: str) -> None:
    shown = redact_foreign(f"before {text} after")
    assert REDACTED in shown
    for secret in (TOKEN[5:], encoded(TOKEN)[8:24], BODY[100:140], EC.splitlines()[1][20:50]):
        assert secret not in shown


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_token_in_base64_is_found_wherever_it_begins(before: str, after: str) -> None:
    assert redact_foreign(encoded(f"{before}{TOKEN}{after}")) == REDACTED


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--api-key hunter", "--api-key <redacted>"),
        ("--hf-token=hunter2", "--hf-token=<redacted>"),
        ("HF_TOKEN: hunter2", "HF_TOKEN: <redacted>"),
        ("requirepass hunter2", "requirepass <redacted>"),
        ('{"password": "hunter2"}', '{"password": "<redacted>"}'),
        (r"{\"secret\": \"hunter2\"}", r"{\"secret\": \"<redacted>\"}"),
        ("redis://user:hunter2@r0:6379/0", "redis://<redacted>@r0:6379/0"),
        ("Bearer hunter2hunter2", "Bearer <redacted>"),
        ("sent hf_abcdefghijklmnopqrst", "sent <redacted>"),
        ("AKIAABCDEFGHIJKLMNOP", "<redacted>"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "<redacted>"),
    ],
)
def test_what_stands_behind_a_secret_s_name_is_taken_out(text: str, shown: str) -> None:
    assert redact_foreign(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "no token was found",
        "tokens: 5, bytesPerToken: 327680, max_tokens=8192",
        "--max-num-batched-tokens 8192 --tokenizer meta-llama/Llama-3.1-70B-Instruct",
        "secret:\n  secretName: chat-engine-0123456789ab",
        "revision 1605565b47bb9346c5515c34102e054115b4f98b",
        "image@sha256:" + "a1" * 32,
        "2026-11-30T05:41:34Z [INFO] kvtier.reconcile.reconciler: serving/chat: planned",
        "/api/v1/namespaces/kvtier-system/pods/kvtier-5d4f8b9c77-abcde/log",
        "whenUnsatisfiable: ScheduleAnyway\ntopologyKey: topology.kubernetes.io/zone",
    ],
)
def test_what_helps_stays(text: str) -> None:
    assert redact_foreign(text) == text


def test_a_document_is_redacted_by_names_and_by_its_arguments() -> None:
    assert redact_tree(
        {
            "apiKey": "hunter2",
            "secretName": "chat-acl",
            "ranks": 4,
            "args": ["--api-key", "hunter2", "--port", "8000", "--password=hunter2"],
            "nested": [{"note": f"is {TOKEN}"}],
        }
    ) == {
        "apiKey": REDACTED,
        "secretName": "chat-acl",
        "ranks": 4,
        "args": ["--api-key", REDACTED, "--port", "8000", f"--password={REDACTED}"],
        "nested": [{"note": f"is {REDACTED}"}],
    }


def test_names_of_secrets_are_told_from_others() -> None:
    for name in ("PASSWORD", "VLLM_API_KEY", "hf-token", "apiKey", "authToken", "db.password"):
        assert is_secret_name(name), name
    for name in ("secretName", "tokens", "PYTHONHASHSEED", "tokenizer", "keyfile", "ranks"):
        assert not is_secret_name(name), name


def test_secrets_that_are_known_go_first_and_the_longest_before() -> None:
    assert redact("abcdef abc", "abc", "abcdef", "") == f"{REDACTED} {REDACTED}"
