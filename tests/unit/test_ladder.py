from dltutorial.config import PRESETS
from dltutorial.data import loader_ladder


def test_the_ladders_data_are_of_every_preset():
    for preset in PRESETS.values():
        sizes = loader_ladder.sizes(preset)
        assert sizes.snapshots >= 16  # the naive layout's chunk
        assert 4 * sizes.n_channels * sizes.n_lat * sizes.n_lon >= 500_000
