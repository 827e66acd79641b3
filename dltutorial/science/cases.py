"""Where the old trainer looks up its task. This file is removed together with ``dltutorial/engine``."""

import importlib
from types import ModuleType

from dltutorial.errors import RecipeError


def case(name: str) -> ModuleType:
    """Return the module of the task ``weather``, the only one that the old trainer still has.

    Raises:
        RecipeError: The name is another.
    """
    if name != "weather":
        raise RecipeError(f"task {name!r}: chapters 21 to 23 train the science cases with their own scripts")
    return importlib.import_module("dltutorial.engine.forecasting")
