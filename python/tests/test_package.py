"""What is said about the package is so: its README, its documentation, its constants."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import scatter_ring as sr

HERE = os.path.dirname(__file__)


def text(path: str) -> str:
    with open(os.path.join(HERE, path)) as file:
        return file.read()


PROGRAMS = re.findall(r"```python\n(.*?)```", text("../README.md"), re.S)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.splitlines()[-1].strip())
def test_a_program_of_the_readme_runs(program: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


def test_the_readme_has_programs_and_so_has_the_package() -> None:
    assert len(PROGRAMS) == 3
    assert sr.__doc__ is not None
    subprocess.run([sys.executable, "-c", inspect.cleandoc(sr.__doc__.split("::")[1].split("Every")[0])], check=True)


def public(thing: type) -> list[str]:
    return [name for name in vars(thing) if not name.startswith("_")]


def test_everything_public_says_what_it_is() -> None:
    undocumented = [name for name in sr.__all__ if not getattr(sr, name).__doc__ and not name.startswith("OPCODE")]
    for name in sr.__all__:
        thing = getattr(sr, name)
        if inspect.isclass(thing) and thing.__module__ == "scatter_ring":
            undocumented += [f"{name}.{each}" for each in public(thing) if not getattr(thing, each).__doc__]
    assert undocumented == []
    assert len(public(sr.Client)) > 20


def test_a_batch_has_the_operations_of_a_client_with_the_same_arguments() -> None:
    operations = [name for name in public(sr.Client) if re.match("read|write|notify", name)]
    assert len(operations) == 11
    for name in operations:
        of_client = inspect.signature(getattr(sr.Client, name)).parameters
        of_batch = inspect.signature(getattr(sr.Batch, name)).parameters
        expected = {each: value for each, value in of_client.items() if each not in ("deadline", "wait")}
        assert expected == dict(of_batch), name


def test_descriptors_are_those_of_the_c_header() -> None:
    header = text("../../ring-abi/include/scatter_ring_abi.h")
    offsets = re.findall(r"offsetof\(scatter_ring_descriptor, (\w+)\) == (\d+)\)", header)
    # Bound by the last: each field ends where the next one starts.
    fields = sr.DESCRIPTOR_DTYPE.fields
    assert fields is not None
    assert {name: int(offset) for name, offset in offsets} == {name: field[1] for name, field in fields.items()}
    assert sr.DESCRIPTOR_DTYPE.itemsize == 64
    for name in ["NOP", "READ", "WRITE"]:
        number = re.search(rf"#define SCATTER_RING_OPCODE_{name} (\d+)u", header)
        assert number is not None and int(number[1]) == getattr(sr, f"OPCODE_{name}")


def test_a_dtype_is_taken_by_every_name_that_it_has() -> None:
    class TorchDType:
        def __str__(self) -> str:
            return "torch.bfloat16"

    with sr.Engine() as engine, engine.client() as client:
        for dtype in ["float32", np.float32, np.dtype("f4"), "f", "<f4"]:
            assert client.allocate(1, dtype).dtype == "float32"
        assert client.allocate(1, TorchDType()).dtype == "bfloat16"
        assert client.allocate(1).dtype == "uint8"
