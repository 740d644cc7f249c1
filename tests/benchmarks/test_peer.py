"""A peer that is not there, or fails, is a reason with its command and not a crash of ours."""

from __future__ import annotations

import sys

import pytest

from benchmarks.peers.peer import Peer, PeerError
from benchmarks.peers.serve import spoken


def test_no_environment_and_no_such_file() -> None:
    with pytest.raises(PeerError, match="no environment given, see benchmarks/README.md"):
        Peer("trl_play", None, {})
    with pytest.raises(PeerError, match="nowhere/python -m benchmarks.peers.trl_play"):
        Peer("trl_play", "nowhere/python", {})


def test_a_peer_that_fails_leaves_its_last_words() -> None:
    with pytest.raises(PeerError, match=r"-m benchmarks.peers.no_such_peer ended: .*No module"):
        Peer("no_such_peer", sys.executable, {})


def test_an_answer_stops_where_its_author_would_have() -> None:
    assert spoken("go north<|end|>go east", "<|end|>") == "go north"
    assert spoken("look\nopen door", "<|end|>") == "look"
    assert spoken("look", "<|end|>") == "look"
