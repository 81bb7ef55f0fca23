"""A small tokenizer of Gemma's kind: BPE with byte fallback, every id below 512.

It has what pi0.5 needs of the real one (ids of the special tokens, digits one by one, `▁` for a space, a
byte for what it does not know), and loads as `GemmaTokenizerFast` in transformers 4.53 and as
`GemmaTokenizer` in transformers 5. `tokenizer.json` is written here as canonical JSON, because its layout
differs between versions of the `tokenizers` library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stack.files import write_json

SPECIAL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
SPACE = "\u2581"  # Gemma's mark for a space
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
PRINTABLE = tuple(chr(code) for code in range(33, 127))

# Words of pi0.5's prompt and of tasks on a table; digits stay single, as in Gemma.
WORDS = (
    "Task",
    "State",
    "Action",
    "the",
    "pick",
    "place",
    "put",
    "and",
    "into",
    "box",
    "cube",
    "left",
    "right",
)
MODEL_MAX_LENGTH = 1_000_000


def write_tokenizer(out: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json` and `config.json`.

    transformers 5 asks for `config.json` where a tokenizer lies in a hub cache.
    """
    vocabulary, merges = build_bpe()
    special = {name: f"<{name.removesuffix('_token')}>" for name in _SPECIAL_ROLES}
    write_json(out / "tokenizer.json", _tokenizer_json(vocabulary, merges))
    write_json(out / "special_tokens_map.json", special)
    write_json(
        out / "tokenizer_config.json",
        {
            **special,
            "add_bos_token": True,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": MODEL_MAX_LENGTH,
            "padding_side": "right",
            "tokenizer_class": "GemmaTokenizer",
        },
    )
    write_json(out / "config.json", {"model_type": "paligemma"})


_SPECIAL_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token")


def build_bpe() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary (piece to id) and merges in order of rank.

    A word grows from its left end, so that each merge's left side exists before it.
    """
    pieces = [*SPECIAL_TOKENS, *BYTE_TOKENS, "\n", SPACE, *PRINTABLE]
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        grown = word[0]
        for letter in word[1:]:
            if (grown, letter) not in merges:
                merges.append((grown, letter))
                pieces.append(grown + letter)
            grown += letter
    return {piece: id for id, piece in enumerate(pieces)}, merges


def _tokenizer_json(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> dict[str, Any]:
    """The `tokenizers` library's serialised form (https://github.com/huggingface/tokenizers), version 1.0."""
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    sequence = [{"Sequence": {"id": letter, "type_id": 0}} for letter in "AB"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocabulary[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in SPECIAL_TOKENS
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, sequence[0]],
            "pair": [bos, sequence[0], bos, sequence[1]],
            "special_tokens": {
                "<bos>": {"id": "<bos>", "ids": [vocabulary["<bos>"]], "tokens": ["<bos>"]},
            },
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [list(merge) for merge in merges],
        },
    }
