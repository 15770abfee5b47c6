"""Data of a Python program as columns: frames, arrays, data sets of torch and of Hugging Face, lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, TensorDataset

from ..errors import ArnoError
from .dataset import shortened
from .images import Array

#: One or several names.
Label = str | list[str] | None
#: The usual names of the label and of the input in samples that are dictionaries.
LABELS = ("label", "labels", "target", "targets", "y", "fine_label")
INPUTS = ("x", "image", "img", "pixel_values", "input_ids", "features", "data")
SHAPES = "a DataFrame, an array, a data set of torch or of Hugging Face, or a list of (x, y)"


@dataclass(frozen=True)
class Rows:
    """Samples as columns.

    x: a DataFrame, or one array for all samples. y: the targets by name, each with one value per sample; None for a
    column of x. client: the name of the client of each sample, or the name of a column of x; None if there are no
    clients. names: the names of the classes, if y holds the numbers of classes.
    """

    x: Any
    y: dict[str, Any]
    client: Any = None
    names: Sequence[str] | None = None


def rows_of(x: Any, y: Any, label: Label, client: Any, features: Sequence[str] | None) -> Rows:
    """Samples in any form as columns. label: the name of the target, if the parts of a sample have names."""
    import pandas as pd

    if several := _by_client(x):
        return _joined(several, y, label, client, features)
    if label is None and y is None and _are_pairs(x):
        return _joined_pairs(x, client)
    x = _columns(x)
    if isinstance(x, pd.DataFrame):
        x = _named_columns(x, [*_names(label), *([client] if _is_name(client) else [])])
        client = str(client) if _is_name(client) else client
        return Rows(x, _target(x, y, label), aligned(x, client, "client"))
    if isinstance(x, Mapping) and "data" in x and "target" in x:  # a Bunch of scikit-learn
        return _bunch(x, client)
    if isinstance(x, Mapping):
        return rows_of(_frame(x), y, label, client, features)
    if is_hugging_face(x):
        return _hugging_face(x, _single(label), client, features)
    if y is not None:
        return Rows(array(x), by_name(y), aligned(y, client, "client", "y") if isinstance(y, pd.Series) else client)
    if isinstance(x, TensorDataset):
        return _pairs(list(x.tensors), client)
    return _samples(x, _single(label), client, features)


def _by_client(x: Any) -> dict[str, Any]:
    """The data of each client, if x is a mapping or a list of frames or of data sets; otherwise empty."""
    import pandas as pd

    if isinstance(x, Mapping):
        each = {str(name): some for name, some in x.items()}
    else:
        each = dict(zip(map(str, range(len(x))), x, strict=True)) if isinstance(x, list | tuple) else {}
    return each if each and all(isinstance(some, pd.DataFrame | Dataset) for some in each.values()) else {}


def _joined(each: Mapping[str, Any], y: Any, label: Label, client: Any, features: Sequence[str] | None) -> Rows:
    """The samples of all clients, one client after another."""
    import pandas as pd

    if client is not None or y is not None:
        rule = "x has the data of each client, with the targets in them"
        raise ArnoError("arno.Data", rule, f"leave out {'client' if client is not None else 'y'}=")
    whose = [name for name, some in each.items() for _ in range(len(some))]
    if all(isinstance(some, pd.DataFrame) for some in each.values()):
        (first, known), *others = ((name, {str(one) for one in some.columns}) for name, some in each.items())
        for name, own in others:
            if odd := sorted(known ^ own):
                rule = f"the frames of {first} and {name} have different columns: {shortened(odd)}"
                raise ArnoError("arno.Data: x", rule, "give all frames the same columns")
        return rows_of(pd.concat(each.values(), ignore_index=True), None, label, whose, features)
    return rows_of(ConcatDataset(list(each.values())), None, label, whose, features)


def _are_pairs(x: Any) -> bool:
    """Whether x is a mapping from the name of each client to its samples and targets, (x, y)."""
    pairs = list(x.values()) if isinstance(x, Mapping) else []
    return bool(pairs) and all(
        isinstance(pair, tuple) and len(pair) == 2 and all(map(_has_length, pair)) for pair in pairs
    )


def _joined_pairs(each: Mapping[Any, Any], client: Any) -> Rows:
    """The samples (x, y) of all clients, one client after another."""
    if client is not None:
        raise ArnoError("arno.Data", "the keys of x are the names of the clients", "leave out client=")
    for name, (x, y) in each.items():
        if len(x) != len(y):
            raise ArnoError(f"arno.Data: {name}", f"{len(x)} samples, {len(y)} targets", "give every sample a target")
    xs, ys = (stacked([one for pair in each.values() for one in array(pair[i])]) for i in (0, 1))
    return Rows(xs, by_name(ys), [str(name) for name, (x, _) in each.items() for _ in range(len(x))])


def _columns(x: Any) -> Any:
    """A frame for a table of Arrow, of a library that exports Arrow columns, or a structured array; else x itself."""
    import pandas as pd
    import pyarrow as pa

    if isinstance(x, np.ndarray) and x.dtype.names is not None:
        return pd.DataFrame(x)
    if isinstance(x, pd.DataFrame | pd.Series) or is_hugging_face(x) or "__arrow_c_stream__" not in dir(type(x)):
        return x
    table = pa.table(x)
    return table.to_pandas(types_mapper=pd.ArrowDtype) if table.num_columns else pd.DataFrame()


def _frame(columns: Mapping[Any, Any]) -> Any:
    """A frame of columns by name."""
    import pandas as pd

    try:
        return pd.DataFrame({str(name): values for name, values in columns.items()})
    except ValueError as error:
        why = str(error).splitlines()[0]
        raise ArnoError(
            "arno.Data: x", f"its columns cannot be used ({why})", "give columns of the same length"
        ) from error


def _named_columns(x: Any, wanted: Sequence[object]) -> Any:
    """A frame whose columns have texts as names. Levels of the index that are named in `wanted` become columns."""
    levels = [name for name in x.index.names if name is not None and name in wanted and name not in x.columns]
    x = x.reset_index(level=levels) if levels else x
    names = [str(name) for name in x.columns]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ArnoError("arno.Data: x", f"two columns are called {twice!r}", "rename one of them")
    return x.set_axis(names, axis=1)


def aligned(x: Any, values: Any, name: str, of: str = "x") -> Any:
    """The values, if they are in the order of the rows of x. Refuses a Series with the same index in another order.

    name, of: the names of values and of x in errors.
    """
    import pandas as pd

    if isinstance(values, pd.Series | pd.DataFrame) and not values.index.equals(x.index):
        same = len(values) == len(x) and values.index.sort_values().equals(x.index.sort_values())
        if same:
            rule = f"its index has the rows of {of} in another order"
            raise ArnoError(f"arno.Data: {name}", rule, f"write {name}.loc[{of}.index], or {name}.to_numpy()")
    return values


def by_name(y: Any) -> dict[str, Any]:
    """Targets by name: the columns of a frame; for an array, y, or y0, y1, … for its columns."""
    import pandas as pd

    if isinstance(y, pd.DataFrame):
        return {str(name): y[name] for name in y.columns}
    if isinstance(y, pd.Series):
        return {"y" if y.name is None else str(y.name): y}
    found = array(y)
    if found.ndim == 2 and found.shape[1] == 1:
        return {"y": found[:, 0]}
    return {f"y{i}": found[:, i] for i in range(found.shape[1])} if found.ndim == 2 else {"y": y}


def _is_name(name: Any) -> bool:
    """Whether a value names a column: a text, or a number, because columns of pandas may have numbers as names."""
    return isinstance(name, str | int) and not isinstance(name, bool)


def _one_name(client: Any) -> str | None:
    """The name of the column with the clients; None if the client of each sample is given."""
    return client if isinstance(client, str) else None


def _names(label: Label) -> list[Any]:
    """The names of the labels, as the user gave them."""
    return [] if label is None else list(label) if isinstance(label, list) else [label]


def _single(label: Label) -> str | None:
    """The name of the label, for samples that have one target each."""
    if isinstance(label, list):
        rule = "several columns of labels need a DataFrame"
        raise ArnoError(f"arno.Data: label = {label}", rule, "name one, or give a DataFrame")
    return None if label is None else str(label)


def is_hugging_face(x: Any) -> bool:
    """Whether an object is a `datasets.Dataset`, without an import of that library."""
    return any(kind.__module__.startswith("datasets.") and kind.__name__ == "Dataset" for kind in type(x).__mro__)


def array(values: Any) -> Array:
    """Values (a tensor, an array, an image, a list) as an array.

    For an image, the first axis is that of the colours.
    """
    from PIL.Image import Image

    if isinstance(values, torch.Tensor):
        _refuse_sparse(values.layout != torch.strided, values, "x.to_dense()")
        values = values.detach().cpu()
        found: Array = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
        return found
    if isinstance(values, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(values), np.nan, np.ma.getdata(values))
    _refuse_sparse(type(values).__module__.startswith("scipy.sparse"), values, "x.toarray()")
    if isinstance(values, Image):
        if values.mode[0] in "IF":  # 16 or 32 bits; a conversion to 8 bits would lose information
            return np.asarray(values, dtype=np.float32)[None]
        pixels = np.asarray(values.convert("L" if values.mode in ("1", "L", "LA") else "RGB"))
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise ArnoError("arno.Data", "the samples have different shapes", "resize, cut or pad them first") from error


def _refuse_sparse(sparse: bool, values: Any, dense: str) -> None:
    if sparse:
        rule = f"{_said(values)} with shape {list(values.shape)} is sparse, and rows with all numbers are needed"
        raise ArnoError("arno.Data", rule, f"write {dense}, or choose fewer columns first")


def stacked(values: Iterable[Any]) -> Array:
    """One array for the inputs of all samples. Refuses samples of different shapes."""
    arrays = [array(value) for value in values]
    odd = next((one.shape for one in arrays if one.shape != arrays[0].shape), None)
    if odd is not None:
        rule = f"the first one has the shape {list(arrays[0].shape)}"
        raise ArnoError(f"arno.Data: a sample of shape {list(odd)}", rule, "resize, cut or pad the samples first")
    return np.stack(arrays)


def _target(x: Any, y: Any, label: Label) -> dict[str, Any]:
    """The targets by name; None for a column of x."""
    if y is not None and label is not None:
        raise ArnoError("arno.Data", "y and label both say what to predict", "leave one of them out")
    if y is None and label is None:
        columns = shortened([str(name) for name in x.columns], 20)
        raise ArnoError("arno.Data", f"the column to predict is not named; there are {columns}", "add label='target'")
    return dict.fromkeys(map(str, _names(label))) if y is None else by_name(aligned(x, y, "y"))


def _bunch(x: Mapping[str, Any], client: Any) -> Rows:
    import pandas as pd

    data, y = x["data"], x["target"]
    if not isinstance(data, pd.DataFrame) and np.ndim(data) == 2 and "feature_names" in x:
        data = pd.DataFrame(np.asarray(data), columns=[str(name) for name in x["feature_names"]])
    names = [str(name) for name in x.get("target_names", ())]
    counted = np.asarray(y).dtype.kind in "ui" and len(names) > int(np.max(y))
    return Rows(data, by_name(y), client, names if counted else None)


def _hugging_face(x: Any, label: str | None, client: Any, features: Sequence[str] | None) -> Rows:
    """A Hugging Face data set: as a frame if all columns hold one value per row, otherwise sample by sample."""
    columns = list(x.column_names)
    label = _named("label", label, columns, LABELS)
    names = x.features[label].names if type(x.features[label]).__name__ == "ClassLabel" else None
    others = [name for name in columns if name not in (label, _one_name(client))]
    wanted = list(features) if features is not None else others
    for name in wanted:
        if name not in columns:
            raise ArnoError(f"arno.Data: features = {name}", f"the columns are {shortened(columns, 20)}", "correct it")
    if all(_is_single(x.features[name]) for name in wanted):
        frame = x.to_pandas()
        y = frame[label]
        whose = frame[client] if isinstance(client, str) else client
        return Rows(frame[wanted], {label: y}, whose, names)
    found = _samples(x, label, client, features)
    return Rows(found.x, found.y, found.client, names)


def _is_single(feature: Any) -> bool:
    """Whether a column of a Hugging Face data set holds numbers, text or truth values; false for images and lists."""
    return type(feature).__name__ in ("Value", "ClassLabel")


def _samples(x: Any, label: str | None, client: Any, features: Sequence[str] | None) -> Rows:
    """A data set or a list of samples: (x, y), (x, y, client), or dictionaries."""
    samples = _read(x)
    first = samples[0]
    if odd := [i for i, one in enumerate(samples) if _form(one) != _form(first)]:
        rule = f"sample 0 is {_said(first)}, and all samples have the same form"
        raise ArnoError(f"arno.Data: sample {odd[0]} is {_said(samples[odd[0]])}", rule, "correct the data set")
    if isinstance(first, Mapping):
        return _dictionaries(samples, label, client, features)
    if not isinstance(first, tuple | list) or len(first) not in (2, 3):
        many = f" of {len(first)} values" if isinstance(first, tuple | list) else ""
        rule = f"the first sample is {_said(first)}{many}; a sample is (x, y), (x, y, client) or a dictionary"
        raise ArnoError("arno.Data", rule, "give the targets as y: arno.Data(x, y)")
    if len(first) == 2 and np.ndim(first[1]) == 1 and np.ndim(first[0]) == 2 and len(first[0]) == len(first[1]):
        rule = f"sample 0 has {len(first[0])} rows and {len(first[1])} targets, as the data of a client"
        raise ArnoError("arno.Data", rule, "name the clients: arno.Data({'bern': (x, y), 'rome': (x, y)})")
    columns = [[sample[i] for sample in samples] for i in range(len(first))]
    return _pairs(columns, client)


def _form(sample: Any) -> tuple[str, object]:
    """What a sample holds: its keys, or the number of its values."""
    if isinstance(sample, Mapping):
        return "dictionary", frozenset(sample)
    return ("values", len(sample)) if isinstance(sample, tuple | list) else ("object", None)


def _read(x: Any) -> list[Any]:
    """All samples of a data set or a list."""
    if isinstance(x, DataLoader):
        raise ArnoError("arno.Data: a DataLoader", "it gives batches", "give its data set: arno.Data(loader.dataset)")
    if isinstance(x, IterableDataset) or (isinstance(x, Iterable) and not _has_length(x)):
        some = "arno.Data(list(itertools.islice(dataset, 10_000)))"
        raise ArnoError(f"arno.Data: {_said(x)}", "it does not say how many samples it has", f"take some: {some}")
    if not _has_length(x):
        raise ArnoError(f"arno.Data: {_said(x)}", f"these are no data; they are {SHAPES}", "see help(arno.Data)")
    samples = [_sample(x, i) for i in range(len(x))]
    if not samples:
        raise ArnoError(f"arno.Data: {_said(x)}", "it has no samples", "is this the right data set?")
    return samples


def _sample(x: Any, i: int) -> Any:
    try:
        return x[i]
    except Exception as error:  # the code of a user's data set may raise any exception
        why = " ".join(str(error).split())
        rule = f"it cannot be read ({type(error).__name__}: {why})"
        raise ArnoError(f"arno.Data: sample {i}", rule, "correct the data set") from error


def _has_length(x: Any) -> bool:
    """Whether an object has a length, and samples by index."""
    return {"__len__", "__getitem__"} <= {*dir(type(x))}


def _pairs(columns: Sequence[Any], client: Any) -> Rows:
    """Samples as (x, y) or (x, y, client). columns: the values of all samples for each position."""
    if len(columns) == 3 and client is not None:
        raise ArnoError("arno.Data", "the samples are (x, y, client), and client is given too", "leave out client=")
    if len(columns) not in (2, 3):
        raise ArnoError("arno.Data", f"a sample holds {len(columns)} values", "use samples (x, y) or (x, y, client)")
    x, y, *whose = (column if isinstance(column, torch.Tensor) else _column(column) for column in columns)
    return Rows(array(x), by_name(y), whose[0] if whose else client)


def _dictionaries(
    samples: Sequence[Mapping[str, Any]], label: str | None, client: Any, features: Sequence[str] | None
) -> Rows:
    import pandas as pd

    keys = [str(key) for key in samples[0]]
    label = _named("label", label, keys, LABELS)
    if isinstance(client, str) and client not in keys:
        raise ArnoError(f"arno.Data: client = {client}", f"a sample holds {shortened(keys, 20)}", "correct it")
    others = [key for key in keys if key not in (label, _one_name(client))]
    wanted = list(features) if features is not None else others
    columns = {key: [sample[key] for sample in samples] for key in {label, *wanted}}
    whose = [sample[client] for sample in samples] if isinstance(client, str) else client
    y = _column(columns[label])
    if all(np.ndim(columns[key][0]) == 0 and not _is_image(columns[key][0]) for key in wanted):
        return Rows(pd.DataFrame({key: columns[key] for key in wanted}), _labelled(label, y), whose)
    chosen = wanted[0] if len(wanted) == 1 else next((key for key in INPUTS if key in wanted), None)
    if chosen is None:
        rule = f"a sample holds {shortened(keys, 20)}, and the input is not named"
        raise ArnoError("arno.Data", rule, f"add features=[{wanted[0]!r}]")
    return Rows(stacked(columns[chosen]), _labelled(label, y), whose)


def _labelled(label: str, y: Any) -> dict[str, Any]:
    """The targets by name. If there is one value per sample, it has the name of the label."""
    found = by_name(y)
    return {label: found["y"]} if "y" in found else found


def _column(values: Sequence[Any]) -> Any:
    """One value per sample: numbers and text are unchanged, tensors and images are stacked."""
    if all(isinstance(value, str | bool | int | float | None) for value in values[:100]):
        return list(values)
    return stacked(values)


def _named(role: str, name: str | None, keys: Sequence[str], usual: Sequence[str]) -> str:
    """The key with a role: the given name, otherwise the first of the usual names."""
    found = next((key for key in ([name] if name is not None else usual) if key in keys), None)
    if found is None:
        what = f"arno.Data: {role} = {name}" if name is not None else "arno.Data"
        rule = f"a sample holds {shortened(keys, 20)}" + ("" if name is not None else f", and the {role} is not named")
        raise ArnoError(what, rule, f"add {role}={keys[-1]!r}" if name is None else "correct it")
    return found


def _is_image(value: Any) -> bool:
    from PIL.Image import Image

    return isinstance(value, Image)


def _said(value: Any) -> str:
    return f"an object of type {type(value).__name__}"
