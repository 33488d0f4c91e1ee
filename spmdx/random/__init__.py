"""Random values that are the same for every mesh, placement, number of ranks and of threads, to the last bit."""

from spmdx.random.draw import bernoulli, bits, normal, randint, uniform
from spmdx.random.key import Key, fold_in, key, split

__all__ = ["Key", "bernoulli", "bits", "fold_in", "key", "normal", "randint", "split", "uniform"]
