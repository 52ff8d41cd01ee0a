"""plot writes a picture of the whole ledger."""


def test_the_picture_has_every_version_verdict_and_mode(chat, tmp_path):
    target = tmp_path / "chat.svg"
    ran = chat("plot", "chat", "--file", str(target))
    assert (ran.code, ran.out) == (0, f"Wrote {target}: 2 decisions, 120 blocks of drafters.\n")
    text = target.read_text()
    for words in ("version 1 as candidate", "version 1 as stable", "version 2 as candidate", "Promoted", "Rejected"):
        assert f"<!-- {words} -->" in text
    assert "<!-- target only -->" in text
    assert "<!-- version 1 -->" in text


def test_a_png_is_a_png(chat, tmp_path):
    chat("plot", "chat", "-f", str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_written_or_drawn_is_said(chat, make_cli, tmp_path):
    assert chat("plot", "chat", "-f", str(tmp_path / "a.gif")).code == 2
    assert "Could not write" in chat("plot", "chat", "-f", str(tmp_path / "no" / "a.png")).err
    cli = make_cli()
    cli.create()
    assert cli("plot", "chat").err.endswith("there is nothing to draw.\n")
