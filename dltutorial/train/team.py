"""The ranks that train one model together, as the training code sees them; here, the team of one.

In: what one rank has. Out: what all ranks share. ``Team`` itself is a rank alone, for which there is nothing to
exchange; ``training_ranks`` has the one for many. Every method is called by all ranks, in the same order.
"""

from typing import Any

from torch import Tensor, nn

from dltutorial.config import Recipe
from dltutorial.errors import RecipeError


class Team:
    """One rank alone.

    Attributes:
        rank, world_size: this rank's number, and how many there are.
    """

    rank = 0
    world_size = 1

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes files and prints."""
        return self.rank == 0

    def share(self, model: nn.Module) -> None:
        """Train this model together: rank 0's weights now, and after each backward pass the mean of all gradients."""

    def mean(self, values_N: Tensor) -> Tensor:
        """Means over the ranks, value by value; exact, so that means of means that are equal already do not change."""
        return values_N

    def sum(self, values: Tensor) -> Tensor:
        """Sums over the ranks, value by value."""
        return values

    def any(self, flag: bool) -> bool:
        """Whether it is true on any rank. On several the answer to this call comes with the next: nobody waits."""
        return flag

    def tell(self, value: Any = None) -> Any:
        """What rank 0 says."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """What every rank has, by rank; on others than rank 0 an empty list."""
        return [value]

    def wait(self) -> None:
        """Until every rank has come here."""


ALONE = Team()


def check(recipe: Recipe, team: Team) -> None:
    """Refuse what cannot be shared by these ranks.

    Raises:
        RecipeError: naming the knob and what it may be.
    """
    n = team.world_size
    if recipe.global_batch_size % n:
        lower = recipe.global_batch_size // n * n
        raise RecipeError(
            f"global_batch_size={recipe.global_batch_size} cannot be shared equally by {n} ranks; "
            f"take {f'{lower} or ' if lower else ''}{lower + n}, or start another number of ranks"
        )
    if n > 1 and recipe.cuda_graph:
        raise RecipeError("cuda_graph works on one rank only; set cuda_graph=False, or start one rank")
    if n > 1 and recipe.compile in ("reduce-overhead", "max-autotune"):
        raise RecipeError(f"compile={recipe.compile} works on one rank only; take compile=default, or start one rank")
