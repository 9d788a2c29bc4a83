"""Step sizes over time: constant, or eps_0 (1 + t / offset)^-gamma.

The averages of SGLD converge to the posterior's when (Karagiannis, condition 24)
(1) eps_t >= 0, (2) sum_t eps_t diverges, (3) sum_t eps_t^2 converges: for the polynomial that is
1/2 < gamma <= 1. A constant step meets the first two: it never stops mixing, and its law is off
by what one step does, of the order of eps.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """eps_t = (1 + t / offset)^-gamma times the first step size; gamma = 0 is constant.

    Raises:
        ValueError: on construction, conditions (2) or (3) fail, or the offset is not positive.
    """

    gamma: float = 0.0
    offset: float = 1.0

    def __post_init__(self) -> None:
        if self.gamma == 0.0:
            return
        if not 0.5 < self.gamma <= 1.0:
            if self.gamma != self.gamma:
                raise ValueError("a polynomial's GAMMA is a number")
            fails = "sum eps_t^2 < inf" if self.gamma <= 0.5 else "sum eps_t = inf"
            raise ValueError(
                f"a polynomial's GAMMA of {self.gamma:g} is not in (1/2, 1]: {fails} fails"
            )
        if not 0.0 < self.offset < float("inf"):
            raise ValueError(f"a polynomial's OFFSET of {self.offset:g} is not positive and finite")

    @staticmethod
    def parse(text: str) -> Schedule:
        """``constant``, ``polynomial`` or ``polynomial:GAMMA:OFFSET``.

        Raises:
            ValueError: the text is neither, or its numbers are refused by `Schedule`.
        """
        name, *numbers = text.split(":")
        if name == "constant" and not numbers:
            return Schedule()
        reason = "it is neither"
        if name == "polynomial" and len(numbers) in (0, 2):
            try:
                gamma, offset = map(float, numbers) if numbers else (0.55, 100.0)
                if gamma == 0.0:
                    raise ValueError("a polynomial's GAMMA of 0 is 'constant'")
                return Schedule(gamma, offset)
            except ValueError as error:
                reason = str(error)
        raise ValueError(
            f"--schedule '{text}': {reason}; choose 'constant' or 'polynomial[:GAMMA:OFFSET]' "
            "with 1/2 < GAMMA <= 1 and OFFSET > 0"
        )

    def factor(self, t: int) -> float:
        """eps_t / eps_0 at sweep t = 0, 1, ..."""
        return float((1.0 + t / self.offset) ** -self.gamma)
