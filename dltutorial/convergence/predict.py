"""The time to solution of a recipe, before it is run.

    seconds = staging + steps × (input + computing + communication) + looks × look
    steps   = S_min (1 + B_crit / B), until the next look

Every factor comes from an earlier chapter and was measured by itself (``measured``): input by loader (03), computing
by precision (04) and images a rank (01), communication by α and β (08), steps by batch size (12). Input and computing
take turns, as they do in ``attempt``. What is left out: ranks that wait for the slower one, anything else that runs.
"""

import math
from dataclasses import dataclass

from dltutorial.convergence.measured import MeasuredMachine
from dltutorial.convergence.recipe import SolutionRecipe
from dltutorial.errors import CourseError

_GRADIENT_BYTES = 4  # of a weight's gradient, in every precision: the weights are float32
PARTS = ("staging", "input", "computing", "communication", "looking")


@dataclass(frozen=True)
class Prediction:
    """What to expect of a recipe.

    Attributes:
        recipe: of which.
        steps: updates until the target is seen, or until the recipe gives up.
        reached: whether the curve reaches the target within the recipe's most steps.
        staging_s, input_s, computing_s, communication_s, looking_s: where the time goes.
        rate_ratio: the recipe's learning rate over the one that the curve was measured with.
    """

    recipe: SolutionRecipe
    steps: int
    reached: bool
    staging_s: float
    input_s: float
    computing_s: float
    communication_s: float
    looking_s: float
    rate_ratio: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self.parts.values())

    @property
    def device_s(self) -> float:
        """Seconds that devices are held."""
        return self.recipe.ranks * self.seconds

    @property
    def parts(self) -> dict[str, float]:
        """Part → seconds."""
        return {name: getattr(self, f"{name}_s") for name in PARTS}

    @property
    def limit(self) -> str:
        """The part that takes longest: where to look first."""
        return max(self.parts, key=self.parts.__getitem__)

    @property
    def note(self) -> str:
        """What the prediction does not know about this recipe; empty if nothing special."""
        if not self.reached:
            return f"gives up after {self.steps} steps, before the curve reaches the target"
        if not 0.45 <= self.rate_ratio <= 2.2:  # more than one step of the grid that was tried
            return f"its rate is {self.rate_ratio:.2g} × the tuned one, of which the curve knows nothing"
        return ""


def time_to_solution(recipe: SolutionRecipe, machine: MeasuredMachine) -> Prediction:
    """Predict a recipe's time to the target on this machine.

    Raises:
        RecipeError: the recipe does not suit the task.
        CourseError: its precision, optimizer or ranks were not measured.
    """
    task = machine.task
    task.check(recipe)
    pair = recipe.precision, recipe.optimizer
    if pair not in machine.update_s or recipe.optimizer not in machine.learning:
        raise CourseError(f"{' with '.join(pair)} was not measured; there are: {list(machine.update_s)}")
    if recipe.ranks > 1 and not machine.message_s:
        raise CourseError(f"an all-reduce was not measured, and {recipe.ranks} ranks need it; measure with ranks=2")
    learning = machine.learning[recipe.optimizer]
    wanted = learning.steps(recipe.batch_size)
    looks = max(1, math.ceil(wanted / recipe.evaluate_every))
    steps = min(looks * recipe.evaluate_every, recipe.max_steps)
    n_bytes = _GRADIENT_BYTES * task.n_weights
    return Prediction(
        recipe,
        steps,
        reached=wanted <= recipe.max_steps,
        staging_s=machine.staging_s[recipe.loader],
        input_s=steps * machine.input_s[recipe.loader].seconds(recipe.rank_batch),
        computing_s=steps * machine.update_s[pair].seconds(recipe.rank_batch),
        communication_s=steps * machine.all_reduce_s(recipe.ranks, n_bytes) if recipe.ranks > 1 else 0.0,
        looking_s=math.ceil(steps / recipe.evaluate_every) * machine.look_s / recipe.ranks,
        rate_ratio=recipe.learning_rate / learning.rate(recipe.batch_size),
    )
