"""The padded forward pass of compat.prompt_attention, a fault of the paper's released code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from policies.policy import Policy

if TYPE_CHECKING:
    from training.batch import PlacedRow


def blind_states(
    policy: Policy, rows: Sequence[PlacedRow], model: nn.Module
) -> tuple[Tensor, Tensor]:
    """States [A, D] before the action tokens of B rows, and place[A], which state of each.

    All but the last B tokens of every prompt are hidden from everything behind them.
    """
    ids = torch.nn.utils.rnn.pad_sequence([placed.read for placed in rows], batch_first=True)
    mask = torch.ones_like(ids, dtype=torch.bool)
    for place, placed in enumerate(rows):
        mask[place, : max(0, int(placed.row.action.nonzero()[0]) - len(rows))] = False
    device = next(model.parameters()).device
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    hidden = policy.hidden(ids.to(device), positions.to(device), mask.to(device), model=model)
    before = [placed.row.action.nonzero()[:, 0] - 1 for placed in rows]
    states = torch.cat([hidden[place, at.to(device)] for place, at in enumerate(before)])
    return states, torch.arange(len(states), device=device)
