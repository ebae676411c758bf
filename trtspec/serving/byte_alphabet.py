"""GPT-2's alphabet: the character that byte-level tokenizers write for each byte of a token."""

from __future__ import annotations


def _byte_of_char() -> dict[str, int]:
    """Returns each byte by its character: itself in Latin-1 where it is printable, else U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_of_char()
CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}
