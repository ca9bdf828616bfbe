"""Many decimal numbers at once are those that Python has, one by one."""

import struct
from decimal import Decimal, localcontext

import numpy as np
import pytest

from mdgraph.io.xyz import format_decimals, parse_decimals


def bits(values: object) -> list[int]:
    return np.asarray(values, dtype=np.float64).view(np.int64).tolist()


@pytest.fixture(scope="module")
def numbers() -> np.ndarray:
    """Of all sizes, of few digits, beside powers of two, and what is special."""
    generator = np.random.default_rng(0)
    any_bits = generator.integers(0, 0x7FF0000000000000, 20_000).view(np.float64)
    powers = 2.0 ** np.arange(-1074, 1024)
    special = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-4, 9.999e-5, 1e15, 1e16, 1e22, 1e23]
    return np.concatenate(
        [
            any_bits,
            generator.normal(size=20_000) * 10.0 ** generator.integers(-18, 18, 20_000),
            np.round(generator.normal(size=20_000), 3),
            powers,
            -np.nextafter(powers, 0.0),
            special,
        ]
    )


def test_texts_are_those_of_repr(numbers: np.ndarray) -> None:
    assert format_decimals(numbers) == [repr(number).encode() for number in numbers.tolist()]
    assert format_decimals(numbers[:6].reshape(2, 3)) == format_decimals(numbers[:6])


def test_numbers_are_the_nearest(numbers: np.ndarray) -> None:
    finite = numbers[np.isfinite(numbers)]
    parsed = parse_decimals(format_decimals(finite))
    assert parsed is not None
    assert bits(parsed) == bits(finite)


def test_texts_halfway_between_numbers_are_rounded_to_even() -> None:
    """They have up to 770 digits, all of which count."""
    generator = np.random.default_rng(1)
    texts = []
    with localcontext() as context:
        context.prec = 1200
        for value in generator.integers(1, 0x7FE0000000000000, 500).tolist():
            (number,) = struct.unpack("d", struct.pack("q", value))
            halfway = (Decimal(number) + Decimal(float(np.nextafter(number, np.inf)))) / 2
            texts += [format(halfway, "e").encode(), format(halfway, "e").encode()[:-6] + b"1e-9"]
    assert bits(parse_decimals(texts)) == bits([float(text) for text in texts])


def test_numbers_as_fortran_and_people_write_them() -> None:
    texts = [b"+1.5", b".5", b"-.25", b"2.", b"007", b"1E+5", b"3", b"123456789012345678901234"]
    assert bits(parse_decimals(texts)) == bits([float(text) for text in texts])


@pytest.mark.parametrize(
    "text",
    [b"", b"-", b"1,2", b"1_0", b"nan", b"true", b"[1]", b'"1"', b"1e", b"1 2", b"0x1", b"e"],
)
def test_other_texts_are_no_numbers(text: bytes) -> None:
    assert parse_decimals([b"1.0", text, b"2.0"]) is None
