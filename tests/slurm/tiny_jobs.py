"""Options of ``dltutorial train`` for runs small enough for two cores."""

TINY = ("--preset", "smoke", "--dim", "32", "--depth", "1", "--eval-every", "0", "--log-every", "1")
