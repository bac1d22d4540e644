"""The block Admission of ``kvtier status``."""

from datetime import UTC, datetime

from status_bodies import SEEN, condition, tier

from kvtier.cli.active import Controller
from kvtier.cli.status_generations import Pool
from kvtier.cli.status_report import text

STORM = {
    "state": "Storm",
    "reason": "RankLost",
    "since": SEEN,
    "engineTokensPerSecond": 5000,
    "meanPromptTokens": 8200,
    "zeroHitTokensPerSecond": 16000,
    "stormFactor": 10.0,
    "requiredEngines": 9,
}


def screen(mode: str, **status: object) -> str:
    body = tier(**status)
    body["spec"]["admission"] = {"mode": mode}
    return text(body, now=datetime.now(UTC), runs=Controller(True), pool=Pool(()))


def test_the_screen_tells_of_admission() -> None:
    conditions = [
        condition("Ready", "True", "TierReady"),
        condition("Warm", "False", "Storm", "A storm: a rank is lost."),
        condition(
            "AdmissionEnforced", "True", "Enforced", "In a storm the limit is held by 2 limiters."
        ),
    ]
    shown = screen("Enforce", admission=STORM, conditions=conditions)
    block = shown[shown.index("Admission\n") : shown.index("RANK")]
    for said in (
        f"Storm (RankLost), for 4 h (since {SEEN})",
        "Storm: A storm: a rank is lost.",
        "what engines take while nothing hits",
        "16,000 tokens/s, each engine prefills 5,000 at 8,200 tokens",
        "10 x the prefill work of now",
        "9 engines",
        "Enforced: In a storm the limit is held by 2 limiters.",
    ):
        assert said in block, shown


def test_in_observe_it_says_that_nothing_is_limited() -> None:
    assert "none: spec.admission.mode is Observe" in screen("Observe", admission=STORM)


def test_a_status_of_an_earlier_release_has_no_block_of_admission() -> None:
    assert "Admission" not in screen("Observe")
