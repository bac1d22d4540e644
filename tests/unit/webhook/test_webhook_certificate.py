"""The certificate is that of the files, by real handshakes, and never half of a pair."""

import logging
import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from certificates import Ca, Pair
from kvtier.store.tls import client_context, handshake
from kvtier.webhook.certificate import ServingCertificate
from kvtier.webhook.metrics import WebhookMetrics
from webhook_process import write

EXPIRY = "kvtier_webhook_certificate_expiry_timestamp_seconds"
UNUSABLE = "kvtier_webhook_certificate_unusable"


@pytest.fixture
def serving(files: Path, metrics: WebhookMetrics) -> ServingCertificate:
    return ServingCertificate(certificate=files / "tls.crt", key=files / "tls.key", metrics=metrics)


def name(serving: ServingCertificate, ca: Ca, *, sni: bool = True, tls: str = "") -> str:
    """Common name of what a client that trusts ``ca`` gets."""
    client = client_context(ca.pem)
    client.check_hostname = sni
    if tls:
        version = ssl.TLSVersion[tls]
        client.minimum_version = client.maximum_version = version
    found = handshake(serving.context, client, name="localhost" if sni else None).getpeercert()
    assert found is not None
    return str(found["subject"][0][0][1])


@pytest.mark.parametrize("tls", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize("sni", [True, False])
def test_a_renewed_pair_is_served_from_the_next_handshake_on(
    serving: ServingCertificate,
    files: Path,
    ca: Ca,
    first: Pair,
    second: Pair,
    tls: str,
    sni: bool,
) -> None:
    write(files, first)
    assert serving.look()
    assert name(serving, ca, tls=tls, sni=sni) == "first"
    write(files, second)
    assert name(serving, ca, tls=tls, sni=sni) == "first"
    assert serving.look()
    assert name(serving, ca, tls=tls, sni=sni) == "second"


def test_tls_1_1_is_refused(serving: ServingCertificate, files: Path, ca: Ca, first: Pair) -> None:
    write(files, first)
    serving.look()
    assert serving.context.minimum_version is ssl.TLSVersion.TLSv1_2
    client = client_context(ca.pem)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        client.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        client.maximum_version = ssl.TLSVersion.TLSv1_1
    client.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        handshake(serving.context, client, name="localhost")


@pytest.mark.parametrize("half", ["certificate", "key", "cut", "empty", "gone", "text", "binary"])
def test_a_half_written_pair_keeps_the_old_one_and_is_told_once(
    serving: ServingCertificate,
    files: Path,
    ca: Ca,
    first: Pair,
    second: Pair,
    metrics: WebhookMetrics,
    caplog: pytest.LogCaptureFixture,
    half: str,
) -> None:
    write(files, first)
    serving.look()
    ends = metrics.registry.get_sample_value(EXPIRY)
    certificate, key = files / "tls.crt", files / "tls.key"
    match half:
        case "certificate":
            certificate.write_text(second.certificate)
        case "key":
            key.write_text(second.key)
        case "cut":
            certificate.write_text(second.certificate[:300])
        case "empty":
            key.write_text("")
        case "gone":
            certificate.unlink()
        case "text":
            certificate.write_text("é: no PEM")
        case "binary":
            key.write_bytes(bytes(range(256)))
    with caplog.at_level(logging.WARNING):
        assert serving.look()
        assert serving.look()
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("certificate not usable, the one before it is served on: ")
    assert str(files) in said
    assert "PRIVATE" not in said
    assert name(serving, ca) == "first"
    assert metrics.registry.get_sample_value(UNUSABLE) == 1
    assert metrics.registry.get_sample_value(EXPIRY) == ends
    write(files, second)
    serving.look()
    assert name(serving, ca) == "second"
    assert metrics.registry.get_sample_value(UNUSABLE) == 0


def test_the_old_pair_put_back_is_usable_again(
    serving: ServingCertificate, files: Path, first: Pair, metrics: WebhookMetrics
) -> None:
    write(files, first)
    serving.look()
    (files / "tls.key").unlink()
    serving.look()
    assert metrics.registry.get_sample_value(UNUSABLE) == 1
    write(files, first)
    serving.look()
    assert metrics.registry.get_sample_value(UNUSABLE) == 0


def test_without_a_first_pair_nothing_is_served(
    serving: ServingCertificate, files: Path, ca: Ca, first: Pair, second: Pair
) -> None:
    assert not serving.look()
    (files / "tls.crt").write_text(first.certificate)
    (files / "tls.key").write_text(second.key)
    assert not serving.look()
    with pytest.raises(ssl.SSLError):
        name(serving, ca)
    write(files, first)
    assert serving.look()
    assert name(serving, ca) == "first"


def test_a_volume_that_is_swapped_between_two_reads_gives_no_mixed_pair(
    files: Path,
    ca: Ca,
    first: Pair,
    second: Pair,
    metrics: WebhookMetrics,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kubelet renames the link ``..data``; here it does so after the certificate was read."""
    for directory, pair in (("old", first), ("new", second)):
        (files / directory).mkdir()
        write(files / directory, pair)
    data = files / "..data"
    data.symlink_to("old")
    serving = ServingCertificate(
        certificate=data / "tls.crt", key=data / "tls.key", metrics=metrics
    )
    read = Path.read_bytes

    def read_and_swap(path: Path) -> bytes:
        content = read(path)
        if path.name == "tls.crt" and data.readlink() == Path("old"):
            (files / "swap").symlink_to("new")
            (files / "swap").replace(data)
        return content

    monkeypatch.setattr(Path, "read_bytes", read_and_swap)
    with caplog.at_level(logging.WARNING):
        assert serving.look()
    assert not caplog.records
    assert name(serving, ca) == "second"


def test_the_expiry_is_that_of_the_leaf_that_is_served_also_of_an_expired_one(
    serving: ServingCertificate, files: Path, ca: Ca, metrics: WebhookMetrics
) -> None:
    for pair in (
        ca.issue("localhost", end=timedelta(days=3)),
        ca.issue("localhost", begin=timedelta(days=-3), end=timedelta(days=-1)),
    ):
        write(files, Pair(pair.certificate + ca.pem, pair.key))
        assert serving.look()
        (files / "leaf").write_text(pair.certificate)
        wanted = ssl._ssl._test_decode_cert(str(files / "leaf"))["notAfter"]  # type: ignore[attr-defined]
        assert metrics.registry.get_sample_value(EXPIRY) == ssl.cert_time_to_seconds(wanted)
