"""GPT-2's alphabet, in which byte-level tokenizers write the bytes of their tokens."""

from __future__ import annotations


def _byte_of_char() -> dict[str, int]:
    """Returns the bytes by their letters: printable ones are Latin-1 characters, the others U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_of_char()
CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}
