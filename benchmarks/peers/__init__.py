"""Other trainers on the same work, each in an environment of its own (see `peer.Peer`).

`peer` runs here; `serve` and the scripts beside it run in the peer's environment, as children.
"""
