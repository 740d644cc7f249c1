"""What can go wrong quietly while playing, counted so that it is seen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rollouts.types import Episode


@dataclass
class Health:
    """Counters of one `play` or `evaluate`; `summary` is what the run logs under `health/`."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            self.counts["episodes"] += 1
            self.counts[f"ended/{episode.ended}"] += 1
            for turn in episode.turns:
                self.counts["turns"] += 1
                self.counts["tokens_sampled"] += len(turn.ids)
                self.counts["cut"] += turn.cut
                self.counts["truncated"] += not turn.stopped
                if turn.invalid is not None:
                    self.counts["invalid"] += 1
                    self.counts[f"invalid/{turn.invalid}"] += 1

    def summary(self) -> dict[str, float]:
        """Counts; shares of turns that were invalid, cut or truncated; seconds.

        `steps_saved` and `resets_saved` are those that no environment had to make, being known.
        `env_seconds` is time spent inside the environments, `wait_seconds` the part of it during
        which nothing was generated, `generation_seconds` the engine.
        """
        turns = max(1, self.counts["turns"])
        shares = {
            f"{name}_share": self.counts[name] / turns for name in ("invalid", "cut", "truncated")
        }
        times = {f"{name}_seconds": self.seconds[name] for name in ("env", "wait", "generation")}
        always = (
            "errors",
            "prefix_breaks",
            "groups_shrunk",
            "groups_dropped",
            "tokens_sampled",
            "tokens_prefilled",
            "resets_saved",
            "steps_saved",
        )
        return {**dict.fromkeys(always, 0), **self.counts, **shares, **times}
