"""What somebody wants to have drawn, what it costs, and by which key the same wish is known again."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from .errors import Refusal

PRICES = {"1024x1024": 1, "1536x1024": 2, "1024x1536": 2}
"""Credits for each size in pixels, width first."""
LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class Params:
    """How it is to be drawn. With the same seed the local provider draws the same picture again."""

    size: str = "1024x1024"
    seed: int | None = None

    @property
    def width(self) -> int:
        return int(self.size.partition("x")[0])

    @property
    def height(self) -> int:
        return int(self.size.partition("x")[2])

    def check(self) -> None:
        """`Refusal` for what nobody draws."""
        if self.size not in PRICES:
            raise Refusal("params_invalid", f"There is no size {self.size[:40]!r}: give one of {', '.join(PRICES)}.")
        if self.seed is not None and not 0 <= self.seed <= LARGEST_SEED:
            raise Refusal("params_invalid", f"The seed {str(self.seed)[:40]} cannot be used: give a whole number from 0 to {LARGEST_SEED}.")


@dataclass(frozen=True)
class Order:
    """One image for one user: the payload of its job."""

    user_id: int
    prompt: str
    cost: int
    """Credits, by the price of the day on which it was ordered."""
    params: Params = field(default_factory=Params)

    def check_price(self) -> None:
        """`Refusal` unless it is what this costs today."""
        if self.cost != PRICES[self.params.size]:
            raise Refusal("params_invalid", f"An image of {self.params.size} costs {PRICES[self.params.size]} credits, and not {self.cost}.")

    def key(self, at: datetime) -> str:
        """The same wish of the same user within one minute has the same key."""
        minute = f"{at.astimezone(UTC):%Y-%m-%dT%H:%M}"
        # As JSON, so that no two different wishes read alike.
        told = json.dumps([self.user_id, self.prompt, asdict(self.params), minute], ensure_ascii=True, sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()
