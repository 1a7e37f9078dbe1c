"""A user's function, made ready to travel to a worker."""

import pickle
from typing import Any

import cloudpickle

from noisescale.errors import InputError


def pack(function: Any, what: str) -> bytes:
    """The function as bytes that :func:`unpack` restores in another process.

    ``what`` is the name of the argument that it was given as.
    """
    try:
        return bytes(cloudpickle.dumps(function))
    except Exception as error:
        raise InputError(
            f"{what} cannot be sent to a worker process ({type(error).__name__}: {error}): build "
            "what it needs inside the function."
        ) from error


def unpack(packed: bytes) -> Any:
    """What :func:`pack` packed."""
    return pickle.loads(packed)
