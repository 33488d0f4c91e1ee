"""What `sx.name` says where there is no such name: the line to write instead. Read only when somebody asks."""

from __future__ import annotations

import numpy as np

from spmdx.errors import MissingName

# Names of NumPy, of JAX and of message passing that newcomers look for; each with the line to write.
INSTEAD = {
    # values in order
    "median": "sx.sort(x, axis=0)[len(x) // 2]   (of an odd number of elements)",
    "quantile": "sx.sort(x, axis=0)[round(q * (len(x) - 1))]   (the nearest element)",
    "percentile": "sx.sort(x, axis=0)[round(p / 100 * (len(x) - 1))]   (the nearest element)",
    "partition": "sx.sort(x)",
    "argpartition": "sx.argsort(x)",
    "lexsort": "sx.argsort of one key made of them, such as a * (b.max() + 1) + b",
    "unique": "np.unique(x.numpy()), or s = sx.sort(sx.ravel(x)) and s[:1], s[1:][s[1:] != s[:-1]]",
    "isin": "sx.any(x[..., None] == values, axis=-1)",
    # counted
    "bincount": "sx.zeros(n, int).at[x].add(1)   (n is int(x.max()) + 1)",
    "histogram": "sx.zeros(len(edges) - 1, int).at[sx.searchsorted(edges[1:-1], x, 'right')].add(1)",
    "digitize": "sx.searchsorted(edges, x, 'right')",
    "cov": "c = x - x.mean(1, keepdims=True); c @ c.T / (x.shape[1] - 1)",
    "corrcoef": "z = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True); z @ z.T / x.shape[1]",
    "nansum": "sx.sum(sx.where(sx.isnan(x), 0, x))",
    "nanmean": "sx.sum(sx.where(sx.isnan(x), 0, x)) / sx.sum(~sx.isnan(x))",
    "nanmax": "sx.max(sx.where(sx.isnan(x), -sx.inf, x))",
    "nanmin": "sx.min(sx.where(sx.isnan(x), sx.inf, x))",
    # formulas
    "interp": "i = sx.clip(sx.searchsorted(xs, x) - 1, 0, len(xs) - 2); "
    "ys[i] + (x - xs[i]) * (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i])   (x inside xs)",
    "convolve": "sx.nn.conv1d, or a sum of shifted slices: w[0] * x[:-2] + w[1] * x[1:-1] + w[2] * x[2:]",
    "correlate": "sx.nn.conv1d, or a sum of shifted slices: w[0] * x[:-2] + w[1] * x[1:-1] + w[2] * x[2:]",
    "gradient": "(x[2:] - x[:-2]) / 2",
    "ediff1d": "sx.diff(sx.ravel(x))",
    "trapezoid": "sx.sum((y[1:] + y[:-1]) / 2) * dx",
    "trapz": "sx.sum((y[1:] + y[:-1]) / 2) * dx",
    "polyval": "c[0] * x**2 + c[1] * x + c[2]",
    "vander": "x[:, None] ** sx.arange(n)",
    "cbrt": "sx.sign(x) * sx.abs(x) ** (1 / 3)",
    "exp2": "2.0 ** x",
    "fabs": "sx.abs(x)",
    "fmax": "sx.where(sx.isnan(x), y, sx.where(sx.isnan(y), x, sx.maximum(x, y)))",
    "fmin": "sx.where(sx.isnan(x), y, sx.where(sx.isnan(y), x, sx.minimum(x, y)))",
    "fmod": "sx.copysign(sx.abs(x) % sx.abs(y), x)",
    "heaviside": "sx.where(x == 0, h, (x > 0).astype(x.dtype))",
    "sinc": "sx.where(x == 0, 1.0, sx.sin(sx.pi * x) / (sx.pi * sx.where(x == 0, 1.0, x)))",
    "deg2rad": "x * (sx.pi / 180)",
    "radians": "x * (sx.pi / 180)",
    "rad2deg": "x * (180 / sx.pi)",
    "degrees": "x * (180 / sx.pi)",
    "rint": "sx.round(x)",
    "fix": "sx.trunc(x)",
    "modf": "x - sx.trunc(x), sx.trunc(x)",
    "divmod": "divmod(x, y)",
    "logspace": "10.0 ** sx.linspace(start, stop, num)",
    "geomspace": "sx.exp(sx.linspace(math.log(start), math.log(stop), num))",
    "angle": "sx.atan2(sx.imag(z), sx.real(z))",
    # shapes and elements
    "atleast_1d": "x[None] if x.ndim == 0 else x",
    "atleast_2d": "x[None] if x.ndim == 1 else x",
    "rollaxis": "sx.moveaxis(x, source, destination)",
    "rot90": "sx.flip(x.T, 0)",
    "hsplit": "sx.split(x, parts, 1)",
    "vsplit": "sx.split(x, parts, 0)",
    "block": "sx.vstack([sx.hstack([a, b]), sx.hstack([c, d])])",
    "resize": "sx.tile(x, n) and a slice of it",
    "shape": "x.shape",
    "size": "x.size, and mesh.size for the number of ranks",
    "ndim": "x.ndim",
    "insert": "sx.concat([x[:i], values, x[i:]])",
    "delete": "sx.concat([x[:i], x[i + 1:]])",
    "put": "x = x.at[index].set(values)",
    "put_along_axis": "x = x.at[index].set(values)",
    "copyto": "x = sx.where(mask, y, x)",
    "fill_diagonal": "sx.where(sx.eye(n) > 0, value, x)",
    "choose": "sx.where(i == 0, a, b)",
    "select": "sx.where(first, a, sx.where(second, b, default))",
    "piecewise": "sx.where(x < 0, f(x), g(x))",
    "compress": "x[mask]",
    "extract": "x[mask]",
    "apply_along_axis": "the function on the whole array, with axis=",
    "vectorize": "the function on the whole array: operations are elementwise",
    "triu_indices": "sx.triu(x)",
    "tril_indices": "sx.tril(x)",
    "indices": "sx.meshgrid(sx.arange(m), sx.arange(n), indexing='ij')",
    "fromfunction": "sx.meshgrid(sx.arange(m), sx.arange(n), indexing='ij') and the formula",
    # arrays, dtypes, files
    "ndarray": "sx.Array",
    "ascontiguousarray": "x (blocks are laid out by spmdx)",
    "float_": "sx.float64",
    "bool_": "sx.bool",
    "dtype": "np.dtype(...): spmdx uses NumPy's",
    "frombuffer": "sx.asarray(np.frombuffer(...), placement=...), or sx.from_block of this rank's part",
    "load": "sx.asarray(np.load(path, mmap_mode='r'), placement=...)",
    "loadtxt": "sx.asarray(np.loadtxt(path), placement=...)",
    "save": "value = x.numpy(), and then `if mesh.rank == 0: np.save(path, value)`",
    "savetxt": "value = x.numpy(), and then `if mesh.rank == 0: np.savetxt(path, value)`",
    "linalg": "np.linalg.solve(a.numpy(), b.numpy()) for what fits one rank; norm, matmul, outer, trace are sx's own",
    "fft": "np.fft.fft(x.numpy()) for what fits one rank",
    # of JAX and PyTorch
    "numpy": "sx itself: sx.sum(x)",
    "jit": "the function itself: operations run at once, and remember how",
    "pmap": "the function on whole arrays: a placement divides the work",
    "shard_map": "the function on whole arrays: a placement divides the work",
    "device_put": "sx.asarray(x, mesh=mesh, placement=...)",
    "tensor": "sx.asarray(values)",
    "cat": "sx.concat(arrays, axis)",
    "NamedSharding": "sx.asarray(x, mesh=mesh, placement=sx.P(...))",
    "PartitionSpec": "sx.P",
    # of message passing
    "rank": "sx.make_mesh().rank",
    "allreduce": "sx.sum(x, axis): what it leaves Partial is finished when it is needed",
    "all_reduce": "x.redistribute(axis_name=sx.Replicate())",
    "allgather": "x.redistribute({}), or x.numpy() for a NumPy array",
    "all_gather": "x.redistribute({}), or x.numpy() for a NumPy array",
    "alltoall": "x.redistribute(axis_name=sx.Shard(1))",
    "all_to_all": "x.redistribute(axis_name=sx.Shard(1))",
    "scatter": "sx.asarray(value, placement=...), with the same value on every rank",
    "gather": "x.numpy()",
    "bcast": "sx.asarray(value): every rank has the same value already",
    "broadcast": "sx.broadcast_to(x, shape)",
    "barrier": "nothing: collectives wait for one another",
    "init": "nothing: the ranks are found when something first needs them",
    "print": "value = float(x), and then `if mesh.rank == 0: print(value)`",
}

# What NumPy's arrays have and ours do not.
METHODS = {
    "fill": "x = sx.full_like(x, value)",
    "flat": "sx.ravel(x)",
    "itemset": "x = x.at[index].set(value)",
    "resize": "sx.pad(x, ...) or a slice",
    "view": "x.astype(dtype), or x itself: no array can change it",
    "partition": "x.sort()",
}

# What numpy.random, jax.random and torch have, and spmdx.random has not.
RANDOM = {
    "seed": "key = sx.random.key(seed), which every draw takes; or rng = sx.random.default_rng(seed)",
    "manual_seed": "key = sx.random.key(seed), which every draw takes; or rng = sx.random.default_rng(seed)",
    "PRNGKey": "sx.random.key(seed)",
    "RandomState": "sx.random.default_rng(seed)",
    "rand": "sx.random.uniform(key, shape), or rng.random(shape)",
    "random": "sx.random.uniform(key, shape), or rng.random(shape)",
    "random_sample": "sx.random.uniform(key, shape), or rng.random(shape)",
    "randn": "sx.random.normal(key, shape), or rng.normal(size=shape)",
    "standard_normal": "sx.random.normal(key, shape), or rng.standard_normal(shape)",
    "integers": "sx.random.randint(key, shape, low, high), or rng.integers(low, high, shape)",
    "random_integers": "sx.random.randint(key, shape, low, high + 1)",
    "standard_exponential": "sx.random.exponential(key, shape)",
    "standard_t": "sx.random.t(key, shape, df)",
    "multivariate_hypergeometric": "np.random.default_rng(seed) on every rank, and sx.asarray of what it gives",
}


def line_for(name: str, module: str = "np") -> str:
    """The line to write instead of a name. ``module``: where NumPy has it."""
    return INSTEAD.get(name) or f"{module}.{name}(x.numpy()), where the value fits one rank"


def no_such_name(name: str) -> AttributeError:
    """The error for a name that spmdx does not have."""
    message = f"module 'spmdx' has no attribute {name!r}."
    place = next((m for m in (np, np.linalg, np.fft) if hasattr(m, name)), None)
    if name[:1] == "_" or (place is None and name not in INSTEAD):
        return AttributeError(message)
    return MissingName(message, line_for(name, (place or np).__name__.replace("numpy", "np")))


def no_such_draw(name: str) -> AttributeError:
    """The error for a name that spmdx.random does not have."""
    message = f"module 'spmdx.random' has no attribute {name!r}."
    known = name in RANDOM or hasattr(np.random, name)
    if name[:1] == "_" or not known:
        return AttributeError(message)
    return MissingName(message, RANDOM.get(name) or "a function of sx.random.uniform(key, shape), or sx.asarray(value)")


def no_such_attribute(name: str) -> AttributeError:
    """The error for an attribute that arrays do not have."""
    message = f"'Array' object has no attribute {name!r}."
    if name[:1] == "_" or not (hasattr(np.ndarray, name) or name in METHODS):
        return AttributeError(message.rstrip("."))
    return MissingName(message, METHODS.get(name) or INSTEAD.get(name) or f"x.numpy().{name}, of the global value")
