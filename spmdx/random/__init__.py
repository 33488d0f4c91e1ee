"""Random values that are the same for every mesh, placement, number of ranks and of threads, to the last bit."""

from spmdx.random.draw import bernoulli, bits, normal, randint, uniform
from spmdx.random.key import Key, clone, consume, fold_in, key, key_data, split, wrap_key_data
from spmdx.random.order import categorical, choice, permutation, shuffle

__all__ = [
    "Key",
    "bernoulli",
    "bits",
    "categorical",
    "choice",
    "clone",
    "consume",
    "fold_in",
    "key",
    "key_data",
    "normal",
    "permutation",
    "randint",
    "shuffle",
    "split",
    "uniform",
    "wrap_key_data",
]
