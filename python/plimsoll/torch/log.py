"""What a program without data allocated and freed, in order."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Block:
    """An allocation; `freed` is the number of the event that freed it."""

    size: int
    at: int
    place: tuple[str, int, str]
    operator: str
    freed: int | None = None


@dataclass
class Log:
    """What was allocated and freed, in order: the number of a block, negative minus one when freed;
    None where the program gave back its cache, and a mark where it began to count anew."""

    blocks: list[Block] = field(default_factory=list)
    events: list[int | None] = field(default_factory=list)
    reset_at: int = 0

    def take(self, size: int, place: tuple[str, int, str], operator: str) -> int:
        number = len(self.blocks)
        self.blocks.append(Block(size, len(self.events), place, operator))
        self.events.append(number)
        return number

    def free(self, number: int) -> None:
        block = self.blocks[number]
        if block.freed is None:
            block.freed = len(self.events)
            self.events.append(-1 - number)

    def give_back(self) -> None:
        self.events.append(None)

    def count_anew(self) -> None:
        self.reset_at = len(self.events)
