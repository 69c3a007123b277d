"""A toy engine that drafts against a running service: ``python examples/grpc_drafting.py ADDRESS``.

Start a service with ``suffixspec serve --drafts-only``. The "model" here writes the same kind of
edit again and again, as agents do, so from the second conversation on most of what it says was
drafted. A real engine has its forward pass where :meth:`ToyModel.verify` stands.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np

from suffixspec_index.draft import Draft
from suffixspec_service.client import ClientRequest, DraftClient

VOCAB_SIZE = 256  # its tokens are bytes
ANSWER = "Calling edit_file(path='{name}.py', old='return None', new='return {name}()'). Done.\n"


@dataclass
class ToyModel:
    """Knows what it will say; a forward pass tells how far a draft agrees with it."""

    answer: bytes
    said: int = 0
    steps: int = 0

    def verify(self, draft: Draft) -> list[int]:
        """The accepted tokens of a draft and one more: what one step of the engine yields."""
        self.steps += 1
        rest = list(self.answer[self.said :])
        gained = rest[: len(draft.accepted_by(rest)) + 1]
        self.said += len(gained)
        return gained

    @property
    def done(self) -> bool:
        """Whether everything is said."""
        return self.said == len(self.answer)


@dataclass
class Running:
    """A request in the batch."""

    request: ClientRequest
    model: ToyModel
    gained: list[int] = field(default_factory=list)


def decode(client: DraftClient, names: list[str]) -> float:
    """Answer all of ``names`` in one batch; returns output tokens per step."""
    batch = []
    for name in names:
        prompt = list(f"Please fix {name}.py\n".encode())
        request = client.begin(f"conversation-{name}", prompt, max_tokens=200)
        batch.append(Running(request, ToyModel(ANSWER.format(name=name).encode())))
    everything = list(batch)
    while batch:
        # One round trip: what the last step gained, and the drafts for the next one.
        drafts = client.step(
            [(one.request, np.array(one.gained, np.int32)) for one in batch],
            propose=[one.request for one in batch],
        )
        for one, draft in zip(batch, drafts, strict=True):
            one.gained = one.model.verify(draft)
        ended = [one for one in batch if one.model.done]
        if ended:
            client.step([(one.request, one.gained) for one in ended])
            client.finish([one.request for one in ended])
            batch = [one for one in batch if not one.model.done]
    models = [one.model for one in everything]
    return sum(len(m.answer) for m in models) / sum(m.steps for m in models)


def main(address: str) -> None:
    """Decode two batches."""
    with DraftClient(
        address, model="toy", tokenizer="bytes", vocab_size=VOCAB_SIZE, paths_only=True
    ) as client:
        for batch in (["alpha", "beta"], ["gamma", "delta", "epsilon"]):
            print(f"{', '.join(batch)}: {decode(client, batch):.1f} tokens per step")
        found = client.statistics()
        print(f"accepted {found.acceptance.accepted} of {found.acceptance.drafted} drafted tokens")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:50051")
