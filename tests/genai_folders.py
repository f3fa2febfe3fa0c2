# SPDX-License-Identifier: Apache-2.0
"""Makes folders of small language models with random weights, as onnxruntime-genai reads them."""
import json
import os
import shutil

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def generation_folder(path):
    """Copies the tests' generation folder and adds a tokenizer of one letter per token, which onnxruntime-genai cannot read."""
    shutil.copytree(ROOT + "/tests/folders/genai_tiny", path)
    letters = {c: i for i, c in enumerate("?abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,-0123456")}
    tokenizer = {
        "version": "1.0", "model": {"type": "WordLevel", "vocab": letters, "unk_token": "?"},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}, "decoder": {"type": "Fuse"},
        "added_tokens": [], "normalizer": None, "post_processor": None, "truncation": None, "padding": None
    }
    with open(path + "/tokenizer.json", "w") as f:
        json.dump(tokenizer, f)
    return path


def templated_folder(path, template):
    """Like generation_folder, with a chat template and a tokenizer that onnxruntime-genai can read."""
    generation_folder(path)
    with open(path + "/tokenizer.json") as f:
        tokenizer = json.load(f)
    bytes_of_text = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer["model"].update(type="BPE", merges=[], vocab={c.replace(" ", "\u0120"): i for c, i in tokenizer["model"]["vocab"].items()})
    tokenizer.update(pre_tokenizer=bytes_of_text, decoder=bytes_of_text)
    with open(path + "/tokenizer.json", "w") as f:
        json.dump(tokenizer, f)
    with open(path + "/tokenizer_config.json", "w") as f:
        json.dump(dict({"tokenizer_class": "PreTrainedTokenizerFast"}, **({"chat_template": template} if template else {})), f)
    return path


def folder_with(folder, copy, **search):
    """Copies a generation folder and changes the search settings of its configuration."""
    shutil.copytree(folder, copy)
    with open(copy + "/genai_config.json") as f:
        config = json.load(f)
    config["search"].update(search)
    with open(copy + "/genai_config.json", "w") as f:
        json.dump(config, f)
    return copy
