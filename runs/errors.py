"""Errors a user can act on: every message names what is wrong and what to change."""


class TrivetError(Exception):
    """Base of all errors that Trivet raises on purpose; `run.py` prints it as one sentence."""


class ConfigError(TrivetError):
    """A configuration that cannot run; the message names the key and the fix."""


class EnvError(TrivetError):
    """An environment that cannot be made, loaded or stepped."""


class PolicyError(TrivetError):
    """A model, tokenizer or chat template that cannot be used."""


class InvariantError(TrivetError):
    """One of the rules that the maths obeys was broken while running; the run stops."""


class RunError(TrivetError):
    """A run directory that cannot be created, read or continued."""


class TrainingError(TrivetError):
    """Numbers that went wrong while training: a loss that is not finite, a collapsed policy."""
