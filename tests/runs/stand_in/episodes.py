"""Episodes with the fields that records read, without loading torch."""

import types


def episode(number: int, won: bool) -> types.SimpleNamespace:
    task = types.SimpleNamespace(
        id=f"game-{number}",
        sha256=f"{number:064d}",
        type="w1-o1-q1",
        optimal_length=1,
        actions_mean=3.5,
    )
    turn = types.SimpleNamespace(
        ids=[5, 6],
        observation="You see a door.",
        action="open door",
        reward=float(won),
        invalid=None,
    )
    return types.SimpleNamespace(
        task=task,
        member=0,
        turns=[turn],
        ended="won" if won else "turn_limit",
        won=won,
        paid=float(won),
        error=None,
        objective="Leave.",
        final_observation="",
    )
