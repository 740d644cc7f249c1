"""TRL's GRPO and RLOO trainers, an independent witness, on inputs where definitions coincide.

An optional group, skipped where TRL is not installed: docs/algorithms.md says how to run it.
TRL computes inside its trainers, so the witnesses are real trainers over a model of one layer:
`_generate_and_score_completions` for advantages, `_compute_loss`, with log-probabilities that the
test gives, for losses. Where definitions do not coincide, the test that comes nearest says why.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

INSTALL = "an independent witness: `pip install trl==1.16.0` and run this file again"
trl = pytest.importorskip("trl", reason=INSTALL)
datasets = pytest.importorskip("datasets", reason=INSTALL)
utils = pytest.importorskip("trl.trainer.utils", reason=INSTALL)

from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast  # noqa: E402

from algorithms import EpisodeCredit, make_algorithm  # noqa: E402
from algorithms.credit import whiten  # noqa: E402
from algorithms.divergence import entropy, kl_k3  # noqa: E402
from algorithms.grpo import grpo_advantages  # noqa: E402
from algorithms.losses import Surrogate, minibatch_weights, policy_loss  # noqa: E402
from algorithms.rloo import rloo_advantages  # noqa: E402

SEEDS = range(5)
WORDS = {"<pad>": 0, "<eos>": 1, "go": 2, "north": 3, "south": 4}
MASK = torch.tensor(  # sampled tokens: observations lie between turns, padding at the end
    [[1, 1, 0, 0, 1, 1], [1, 0, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0]]
)
TOKENS = int(MASK.sum())


def numbers(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer, where a trainer can load it by name."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    sizes: dict[str, Any] = {"n_positions": 32, "n_embd": 8, "n_layer": 1, "n_head": 1}
    sizes |= {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    ends = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), **sizes, **ends)).save_pretrained(path)
    return path


def trainer(folder: Path, kind: str, rewards: list[float | None], **options: Any) -> Any:
    words = Tokenizer(models.WordLevel(WORDS, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made = getattr(trl, f"{kind}Trainer")(
        model=str(folder),
        reward_funcs=lambda **_: rewards,
        args=getattr(trl, f"{kind}Config")(
            **{"output_dir": str(folder / "out"), "use_cpu": True, "bf16": False}
            | {"report_to": "none", "num_generations": 4, "max_completion_length": 6}
            | {"per_device_train_batch_size": len(rewards), "gradient_checkpointing": False}
            | options
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": "go north"}]),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"
        ),
    )
    made.model.train()
    made.current_gradient_accumulation_steps = 1
    return made


def scored(made: Any, count: int) -> dict[str, Tensor]:
    return made._generate_and_score_completions([{"prompt": "go north"}] * count)


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(
        ours.double(), theirs.double().reshape(ours.shape), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("std_normalise", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_grpo_advantages(folder: Path, seed: int, std_normalise: bool) -> None:
    """Two groups of four. Both take the sample's deviation; scale_rewards="none" is Dr. GRPO's.

    TRL adds 1e-4 to the deviation and we 1e-6, so the rewards here deviate by about 1000.
    """
    rewards = 1000 * numbers(seed, 2, 4)
    scale = "group" if std_normalise else "none"
    made = trainer(folder, "GRPO", rewards.flatten().tolist(), scale_rewards=scale, beta=0.0)
    ours = torch.cat([grpo_advantages(group, std_normalise) for group in rewards])
    close(ours, scored(made, 8)["advantages"])


def test_a_group_without_variance_a_lost_member_and_a_group_of_one(folder: Path) -> None:
    """A reward of None is an episode that could not be scored: it leaves the group in both.

    TRL keeps its row, at advantage 0; ours is left out or replaced by the loop.
    """
    rewards = [3.0, 3.0, 3.0, 3.0, 1000.0, None, 2000.0, 6000.0]
    theirs = scored(trainer(folder, "GRPO", rewards, beta=0.0), 8)["advantages"]
    assert theirs[:4].tolist() == grpo_advantages(torch.full((4,), 3.0)).tolist() == [0.0] * 4
    close(grpo_advantages(torch.tensor([1000.0, 2000.0, 6000.0])), theirs[[4, 6, 7]])
    theirs = scored(trainer(folder, "RLOO", rewards, beta=0.0), 8)["advantages"]
    close(rloo_advantages(torch.tensor([1000.0, 2000.0, 6000.0])), theirs[[4, 6, 7]])
    for kind in ("GRPO", "RLOO"):
        with pytest.raises(ValueError, match="at least 2 generations"):
            trainer(folder, kind, [1.0], num_generations=1)
    with pytest.raises(ValueError, match="group of one"):
        grpo_advantages(torch.ones(1))


@pytest.mark.parametrize("seed", SEEDS)
def test_rloo_advantages(folder: Path, seed: int) -> None:
    rewards = numbers(seed, 2, 4)
    made = trainer(folder, "RLOO", rewards.flatten().tolist(), beta=0.0)
    close(torch.cat([rloo_advantages(group) for group in rewards]), scored(made, 8)["advantages"])


@pytest.mark.parametrize("seed", SEEDS)
def test_whitening_over_episodes(folder: Path, seed: int) -> None:
    """TRL's normalize_advantages: every episode has one vote, as at trajectory level here.

    Rewards deviate by about 1000, for TRL adds 1e-4 to the deviation. At turn level one vote a
    turn is ours alone; votes of tokens TRL has nowhere.
    """
    rewards = 1000 * numbers(seed, 2, 4)
    options = {"beta": 0.0, "normalize_advantages": True}
    theirs = scored(trainer(folder, "RLOO", rewards.flatten().tolist(), **options), 8)
    advantages = torch.cat([rloo_advantages(group) for group in rewards])
    close(whiten(advantages, torch.ones(8)), theirs["advantages"])


def test_kl_in_the_reward(folder: Path) -> None:
    """RLOO's KL is the sum of k1 over the episode's tokens, taken off its reward before comparing.

    So is `algo.kl_in=reward` at trajectory level, for one turn: TRL has no turns here.
    """
    rewards: list[float | None] = [1.0, 0.0, 0.5, 0.0]
    made = trainer(folder, "RLOO", rewards, beta=0.3)
    with torch.no_grad():
        for weight in made.ref_model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape))
    out = scored(made, 4)
    ids = torch.cat([out["prompt_ids"], out["completion_ids"]], 1)
    attention = torch.cat([out["prompt_mask"], out["completion_mask"]], 1)
    width = out["completion_ids"].shape[1]
    with torch.no_grad():
        policy, reference = (
            made._get_per_token_logps_and_entropies(model, ids, attention, width)[0]
            for model in (made.model, made.ref_model)
        )
    group = [
        EpisodeCredit(torch.tensor([reward]), [int(mask.sum())], kl=kl[mask.bool()])
        for reward, mask, kl in zip(
            rewards, out["completion_mask"], policy - reference, strict=True
        )
    ]
    assert max(episode.kl.abs().max() for episode in group if episode.kl is not None) > 0.01
    ours = make_algorithm(
        {"name": "rloo", "advantage_granularity": "trajectory", "group_size": 4, "clip": 0.2}
        | {"entropy_coef": 0.0, "kl_coef": 0.3, "kl_in": "reward", "kl_estimator": "k1"}
        | {"whiten": False}
    )
    (credits,) = ours.credit([group])
    close(torch.stack([credit.advantages[0] for credit in credits]), out["advantages"])


def their_loss(made: Any, logp: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """TRL's loss of a padded batch [B, T] whose log-probabilities are given."""
    rows = len(logp)
    made._get_per_token_logps_and_entropies = lambda *_, **__: (logp, -logp.detach(), None)
    prompt = torch.ones(rows, 2, dtype=torch.int64)
    whole = {"prompt_ids": prompt, "prompt_mask": prompt, "num_items_in_batch": MASK.sum()}
    filled = torch.ones_like(MASK[:rows])
    return made._compute_loss(
        SimpleNamespace(training=True),
        {"completion_ids": filled, "completion_mask": filled, "tool_mask": MASK[:rows]}
        | whole
        | batch,
    )


def our_loss(logp: Tensor, batch: dict[str, Tensor], rule: Surrogate, normalise: str) -> Tensor:
    """The same batch as flat action tokens."""
    at = MASK.bool()
    whose = torch.arange(4).unsqueeze(1).expand(4, 6)[at]
    weights, _ = minibatch_weights(torch.ones(TOKENS), torch.zeros(TOKENS), whose, normalise, 6)
    advantages = batch["advantages"].unsqueeze(1).expand(4, 6)[at]
    old = batch["old_per_token_logps"][at]
    return policy_loss(logp[at], old, advantages, weights, rule, whose)[0]


def four_episodes(seed: int, wide: float = 0.4) -> tuple[Tensor, dict[str, Tensor]]:
    old = -numbers(seed, 4, 6).abs()
    batch = {"old_per_token_logps": old, "advantages": numbers(seed + 100, 4)}
    return old + wide * numbers(seed + 200, 4, 6), batch


LOSSES = {
    # TRL's options; our rule and normalisation
    "grpo": ({"epsilon": 0.2}, Surrogate(), "sequence"),
    "dapo": ({"epsilon": 0.2, "epsilon_high": 0.28}, Surrogate(high=0.28), "token"),
    "dr_grpo": ({"epsilon": 0.2}, Surrogate(), "constant"),
    "bnpo": ({"epsilon": 0.2}, Surrogate(), "token"),
    # TRL bounds the ratio of every token by delta, dual clip only where the advantage is negative:
    # one thing, as long as delta is above 1 + epsilon_high.
    "dual clip": ({"loss_type": "grpo", "delta": 1.5}, Surrogate(dual=1.5), "sequence"),
    # One ratio for the episode. TRL lets the gradient through the mean (the paper's eq. 5), ours
    # is its token form (eq. 14): the same gradient when an episode has one advantage.
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence"}
        | {"epsilon": 0.02, "epsilon_high": 0.04},
        Surrogate(low=0.02, high=0.04, ratio="sequence"),
        "sequence",
    ),
    # TRL's epsilon_high is the bound itself, ours how far it lies above 1; clip 1 is none below.
    "cispo": ({"epsilon_high": 1.28}, Surrogate(low=1.0, high=0.28, form="cispo"), "token"),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients(folder: Path, name: str, seed: int) -> None:
    options, rule, normalise = LOSSES[name]
    made = trainer(folder, "GRPO", [0.0] * 4, **({"loss_type": name, "beta": 0.0} | options))
    logp, batch = four_episodes(seed)
    theirs, mine = logp.clone().requires_grad_(), logp.clone().requires_grad_()
    loss = their_loss(made, theirs, batch)
    loss.backward()
    ours = our_loss(mine, batch, rule, normalise)
    ours.backward()
    assert theirs.grad is not None and mine.grad is not None
    close(ours.detach(), loss.detach())
    close(mine.grad, theirs.grad)
    assert (mine.grad[MASK == 0] == 0).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_correction_for_another_generator(folder: Path, seed: int) -> None:
    """Truncated importance sampling multiplies each token's term, in TRL's loss as in ours.

    TRL takes min(ρ, cap) while it generates with vLLM, which is not here; the test gives it.
    """
    made = trainer(folder, "GRPO", [0.0] * 4, loss_type="dapo", beta=0.0)
    made.use_vllm = made.vllm_importance_sampling_correction = True
    logp, batch = four_episodes(seed)
    old, at = batch["old_per_token_logps"], MASK.bool()
    behaviour = old + numbers(seed + 300, 4, 6)
    batch["importance_sampling_ratio"] = (old - behaviour).exp().clamp(max=1.5)
    advantages = batch["advantages"].unsqueeze(1).expand(4, 6)[at]
    ours, _ = policy_loss(
        logp[at],
        old[at],
        advantages,
        torch.full((TOKENS,), 1 / TOKENS),
        Surrogate(behaviour_cap=1.5),
        behaviour_logp=behaviour[at],
    )
    close(ours, their_loss(made, logp, batch))


@pytest.mark.parametrize("seed", SEEDS)
def test_k3_in_the_loss(folder: Path, seed: int) -> None:
    """On by default, TRL's bias correction multiplies each k3 by its ratio; ours has none."""
    plain = {"use_bias_correction_kl": False}
    made = trainer(folder, "GRPO", [0.0] * 4, loss_type="dapo", beta=0.1, **plain)
    logp, batch = four_episodes(seed)
    batch["ref_per_token_logps"] = logp + 0.5 * numbers(seed + 300, 4, 6)
    batch["advantages"] = torch.zeros(4).double()
    at = MASK.bool()
    ours = 0.1 * kl_k3(logp[at], batch["ref_per_token_logps"][at]).mean()
    close(ours, their_loss(made, logp, batch))


@pytest.mark.parametrize("seed", SEEDS)
def test_rloo_gradient_on_fresh_weights(folder: Path, seed: int) -> None:
    """mean over episodes of A Σ ∇ logp, which is normalise=constant with a constant of 1.

    Further on the definitions part: TRL's ratio is the product over the episode's tokens, clipped
    once, and a long episode has a larger gradient. It has no mask for observations in this
    trainer, so the mask here is of completions.
    """
    made = trainer(folder, "RLOO", [0.0] * 4, beta=0.0)
    old, batch = four_episodes(seed, wide=0.0)
    theirs, mine = old.clone().requires_grad_(), old.clone().requires_grad_()
    batch |= {"completion_mask": MASK, "old_logps": (old * MASK).sum(1)}
    their_loss(made, theirs, batch).backward()
    at = MASK.bool()
    whose = torch.arange(4).unsqueeze(1).expand(4, 6)[at]
    weights, _ = minibatch_weights(torch.ones(TOKENS), torch.zeros(TOKENS), whose, "constant", 1)
    advantages = batch["advantages"].unsqueeze(1).expand(4, 6)[at]
    policy_loss(mine[at], old[at], advantages, weights, Surrogate())[0].backward()
    assert theirs.grad is not None and mine.grad is not None
    close(mine.grad, theirs.grad)


@pytest.mark.parametrize(("name", "invariant"), [("dapo", True), ("grpo", True), ("bnpo", False)])
def test_two_micro_batches_of_two_episodes(folder: Path, name: str, invariant: bool) -> None:
    """Gradients of a batch and of its halves, as the trainer adds them up.

    "bnpo" is a mean over the tokens of a micro-batch, so the cut shows; what ours calls token is
    a mean over the minibatch, as "dapo". "grpo" holds while all parts have as many episodes.
    """
    options = {"loss_type": name, "beta": 0.0, "steps_per_generation": 2}
    made = trainer(folder, "GRPO", [0.0] * 4, **options)
    logp, batch = four_episodes(0)
    grads = []
    for parts in ([slice(0, 4)], [slice(0, 2), slice(2, 4)]):
        made.current_gradient_accumulation_steps = len(parts)
        made.args.steps_per_generation = len(parts)
        leaf = logp.clone().requires_grad_()
        for part in parts:
            cut = {key: value[part] for key, value in batch.items()}
            masks = {"completion_mask": torch.ones_like(MASK[part]), "tool_mask": MASK[part]}
            their_loss(made, leaf[part], cut | masks).backward()
        grads.append(leaf.grad)
    assert torch.allclose(*grads, atol=1e-6) == invariant


def test_log_probabilities_and_entropy() -> None:
    """Of whole distributions; ids that are not allowed (−inf) TRL's entropy does not take."""
    logits = 3 * numbers(0, 2, 5, 11).float()
    ids = torch.arange(10).reshape(2, 5)
    whole = torch.distributions.Categorical(logits=logits)
    close(entropy(logits.reshape(10, 11)), utils.entropy_from_logits(logits))
    close(entropy(logits.reshape(10, 11)), whole.entropy())
    close(whole.log_prob(ids), utils.selective_log_softmax(logits, ids))
