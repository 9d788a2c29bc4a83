"""Step sizes over time (Karagiannis: constant, or a (1 + t/b)^-gamma with 1/2 < gamma <= 1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """eps_t = (1 + t / offset)^-gamma times the first step size; gamma = 0 is constant."""

    gamma: float = 0.0
    offset: float = 1.0

    @staticmethod
    def parse(text: str) -> Schedule:
        """``constant``, ``polynomial`` or ``polynomial:GAMMA:OFFSET``.

        Raises:
            ValueError: the text is neither, or sum eps = inf, sum eps^2 < inf fails
                (1/2 < gamma <= 1), which the convergence of SGLD's averages needs.
        """
        name, *numbers = text.split(":")
        if name == "constant" and not numbers:
            return Schedule()
        if name == "polynomial" and len(numbers) in (0, 2):
            try:
                gamma, offset = map(float, numbers) if numbers else (0.55, 100.0)
            except ValueError:
                gamma = offset = -1.0
            if 0.5 < gamma <= 1.0 and 0.0 < offset < float("inf"):
                return Schedule(gamma, offset)
        raise ValueError(
            f"schedule '{text}' is neither 'constant' nor 'polynomial[:GAMMA:OFFSET]' with "
            "0.5 < GAMMA <= 1 and OFFSET > 0"
        )

    def factor(self, t: int) -> float:
        """eps_t / eps_0 at sweep t = 0, 1, ..."""
        return float((1.0 + t / self.offset) ** -self.gamma)
