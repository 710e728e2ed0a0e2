"""What a case did, as far as it came."""

from __future__ import annotations

from dataclasses import dataclass, field

import infobatch


@dataclass
class Tally:
    """Filled in by the case while it runs, so that it tells something even if the case ends early."""

    world: str = ""
    updates: int = 0
    refusals: list[str] = field(default_factory=list)

    def refuse(self, error: infobatch.InfoBatchError) -> None:
        self.refusals.append(f"{type(error).__name__}: {str(error).partition(';')[0][:100]}")
