"""An order: the prompt, the parameters, the price and the idempotency key."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from .errors import Refusal

PRICES = {"1024x1024": 1, "1536x1024": 2, "1024x1536": 2}
"""Credits for each size in pixels, width first."""
MAX_SEED = 2**31 - 1


@dataclass(frozen=True)
class Params:
    """The size and the seed of an image. The local provider draws the same picture for the same seed."""

    size: str = "1024x1024"
    seed: int | None = None

    @property
    def width(self) -> int:
        return int(self.size.partition("x")[0])

    @property
    def height(self) -> int:
        return int(self.size.partition("x")[2])

    def check(self) -> None:
        """Raise `Refusal` if the size or the seed is not supported."""
        if self.size not in PRICES:
            raise Refusal("params_invalid", f"The size {self.size[:40]!r} is not supported. Use {', '.join(PRICES)}.")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise Refusal(
                "params_invalid",
                f"The seed must be a whole number from 0 to {MAX_SEED}.",
            )


@dataclass(frozen=True)
class Order:
    """The payload of a job: one image for one user."""

    user_id: int
    prompt: str
    cost: int
    """The price in credits at the time of the order."""
    params: Params = field(default_factory=Params)

    def check_price(self) -> None:
        """Raise `Refusal` unless the cost is the current price."""
        if self.cost != PRICES[self.params.size]:
            raise Refusal(
                "params_invalid",
                f"An image of {self.params.size} costs {PRICES[self.params.size]} credits, not {self.cost}.",
            )

    def key(self, at: datetime) -> str:
        """The idempotency key: identical orders of a user within one minute have the same key."""
        minute = f"{at.astimezone(UTC):%Y-%m-%dT%H:%M}"
        # JSON keeps the fields apart, so two different orders never have the same text.
        text = json.dumps([self.user_id, self.prompt, asdict(self.params), minute], ensure_ascii=True, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
