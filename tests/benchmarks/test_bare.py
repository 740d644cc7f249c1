"""`benchmarks.bare`: it forwards the tokens that were played, and computes what the model does."""

from __future__ import annotations

import pytest
import torch

from benchmarks.bare import Bare, turns_of
from rollouts.types import Row
from tests.fakes import toy_policy

SAID = 3


def row(opening: int, replies: list[int], seed: int) -> Row:
    """A first observation, then `len(replies)` more; every turn says SAID tokens."""
    parts = []
    for turn, length in enumerate([opening, *replies]):
        parts += [(-1, length), (turn, SAID)]
    turn = torch.tensor([index for index, length in parts for _ in range(length)])
    ids = torch.randint(4, 60, (len(turn),), generator=torch.Generator().manual_seed(seed))
    return Row(ids, turn >= 0, turn, torch.zeros(len(turn)), seed, 0, seed, 0)


ROWS = [row(9, [4], 0), row(5, [2, 7], 1), row(12, [], 2), row(7, [3, 1], 3)]


@pytest.mark.parametrize("whole", [False, True])
def test_turns_hold_every_token_once_but_the_last(whole: bool) -> None:
    turns = turns_of(ROWS, whole=whole)
    assert [int(turn.real.any(1).sum()) for turn in turns] == [4, 3, 2]
    fed = sum(int(turn.real.sum()) for turn in turns)
    decoded = sum(int(turn.real.any(1).sum()) * (SAID - 1) for turn in turns)
    assert fed + decoded == sum(len(one.ids) - 1 for one in ROWS)


@pytest.mark.parametrize("way", ["slices", "static", "reread"])
def test_hidden_states_are_those_of_whole_rows(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state before each said token, against a pass over the whole row."""
    model = toy_policy().model
    seen: list[torch.Tensor] = []
    head = model.lm_head.forward
    monkeypatch.setattr(
        model.lm_head, "forward", lambda hidden: (seen.append(hidden), head(hidden))[1]
    )
    static = way == "static"
    turns = turns_of(ROWS, reread=way == "reread", whole=static)
    out = Bare(model, turns, 0.7, reread=way == "reread", static=static).play()
    assert out["units"] == (4 + 3 + 2) * SAID and len(seen) == 3 * SAID
    ordered = sorted(ROWS, key=lambda one: -int(one.turn.max()))
    for index, one in enumerate(ordered):
        with torch.no_grad():
            whole = model.base_model(input_ids=one.ids[None]).last_hidden_state[0]
        for place in one.action.nonzero()[:, 0].tolist():
            turn = int(one.turn[place])
            step = place - int((one.turn == turn).nonzero()[0])
            torch.testing.assert_close(
                seen[turn * SAID + step][index], whole[place - 1], rtol=1e-4, atol=1e-4
            )
