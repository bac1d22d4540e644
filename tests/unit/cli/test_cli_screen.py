"""One screen about a tier: bounded in width, every figure at its place."""

from kvtier.cli.screen import WIDTH, RankRow, Screen, screen
from kvtier.placement.findings import Finding, Severity

SHOWN = Screen(
    heading=("Tier chat: a/model", "8 ranks"),
    verdict="PaysWhenLong",
    reason="PaysWhenLong",
    message="Only hits of 3,470 tokens and more are faster.",
    facts=(("break-even (B*)", "13.1 Gb/s"), ("link", "25 Gb/s")),
    ranks=(
        RankRow(0, "node-a", True, 1.25e9, 5e-5, 1 << 30, 4 << 30),
        RankRow(1, "node-long-name", False),
    ),
    findings=(Finding("RanksOutsideDomain", "Rank 1 is in zone b."),),
)


def test_the_whole_screen() -> None:
    assert screen(SHOWN) == (
        "Tier chat: a/model\n"
        "8 ranks\n"
        "\n"
        "Verdict: PaysWhenLong\n"
        "  Only hits of 3,470 tokens and more are faster.\n"
        "\n"
        "  break-even (B*)  13.1 Gb/s\n"
        "  link             25 Gb/s\n"
        "\n"
        "  RANK  WHERE           READY  READS    ROUND TRIP  USED\n"
        "  0     node-a          yes    10 Gb/s  0.05 ms     1 GiB of 4 GiB\n"
        "  1     node-long-name  no     -        -           -\n"
        "\n"
        "Findings\n"
        "  Warning RanksOutsideDomain\n"
        "    Rank 1 is in zone b.\n"
    )


def test_a_reason_that_the_verdict_does_not_say_is_named() -> None:
    text = screen(
        Screen(
            heading=("t",),
            verdict="Unknown",
            reason="NotMeasured",
            message="m",
            facts=(),
            ranks=(RankRow(0, "a", True),),
            findings=(),
        )
    )
    assert "Verdict: Unknown (NotMeasured)\n" in text
    assert text.endswith("\nFindings: none\n")


def test_long_texts_are_broken_and_lose_nothing() -> None:
    words = " ".join(f"word{number}" for number in range(60))
    text = screen(
        Screen(
            heading=(words,),
            verdict="v",
            reason="r",
            message=words,
            facts=(("a name", words),),
            ranks=(),
            findings=(Finding("R", words, severity=Severity.ERROR, blocks=True),),
        )
    )
    assert max(map(len, text.splitlines())) <= WIDTH
    assert " ".join(text.split()).count(words) == 4
    assert "  Error R, refused with onReject: Block\n" in text
