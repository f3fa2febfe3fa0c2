# SPDX-License-Identifier: Apache-2.0
"""Tests optimum's ONNX classes and the ONNX backend of sentence-transformers with the provider: outputs and tokens must be the plain
session's.

usage: huggingface.py BUILD

Needs optimum-onnx, torch and (for one case) sentence-transformers: in this Python, or in the one that OPTIMUM_PYTHON names. The models are
small, have random weights, and are exported by optimum; nothing is downloaded."""
import importlib.util
import json
import os
import shutil
import sys
import warnings

import harness

BUILD = os.path.abspath(sys.argv[1])
TEXTS = ["w1 w2 w3 w4 w5", "w7 w8"]
BERT = dict(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64,
            num_labels=3)
LLAMA = dict(vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, bos_token_id=2, eos_token_id=3, pad_token_id=0)
GPT2 = dict(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=2, eos_token_id=3, pad_token_id=0)
T5 = dict(vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, eos_token_id=3, pad_token_id=0)
BART = dict(vocab_size=100, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64, pad_token_id=0, bos_token_id=2, eos_token_id=3,
            decoder_start_token_id=2, forced_eos_token_id=None)
SEQ2SEQ = (("T5ForConditionalGeneration", "T5Config", T5), ("BartForConditionalGeneration", "BartConfig", BART),
           ("MarianMTModel", "MarianConfig", dict(BART, decoder_vocab_size=100)))


def lacking():
    """Returns the packages that this Python does not have."""
    return [name for name in ("torch", "transformers", "optimum", "onnxruntime") if importlib.util.find_spec(name) is None]


def tokenizer():
    """A tokenizer with one token per word, for w0 to w94."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(special + ["w%d" % i for i in range(95)])}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, padding_side="left", **{name[1:-1].lower() + "_token": name for name in special})


def export(folder, original, config, values):
    """Writes a model of transformers with random weights to folder/torch, and optimum's export of it to folder/onnx."""
    import torch
    import transformers
    from optimum.onnxruntime import (
        ORTModelForCausalLM,
        ORTModelForFeatureExtraction,
        ORTModelForMaskedLM,
        ORTModelForSeq2SeqLM,
        ORTModelForSequenceClassification,
    )

    ours = {
        "BertForSequenceClassification": ORTModelForSequenceClassification, "BertForMaskedLM": ORTModelForMaskedLM,
        "BertModel": ORTModelForFeatureExtraction, "T5ForConditionalGeneration": ORTModelForSeq2SeqLM
    }.get(original, ORTModelForCausalLM)
    torch.manual_seed(0)
    getattr(transformers, original)(getattr(transformers, config)(**values)).eval().save_pretrained(folder + "/torch")
    ours.from_pretrained(folder + "/torch", export=True).save_pretrained(folder + "/onnx")
    tokenizer().save_pretrained(folder + "/onnx")
    return ours, folder + "/onnx"


def export_merged(folder, original, config, values):
    """As export for models with an encoder and a decoder: decoder_model_merged.onnx has an If, whose branches run the first step and later
    steps."""
    import torch
    import transformers
    from optimum.exporters.onnx import onnx_export_from_model
    from optimum.onnxruntime import ORTModelForSeq2SeqLM
    torch.manual_seed(0)
    model = getattr(transformers, original)(getattr(transformers, config)(**values)).eval()
    for weight in model.parameters():  # so that answers do not repeat one token
        if weight.dim() > 1:
            weight.data.normal_(0, 0.2)
    onnx_export_from_model(model, folder + "/onnx", task="text2text-generation-with-past")
    tokenizer().save_pretrained(folder + "/onnx")
    assert os.path.exists(folder + "/onnx/decoder_model_merged.onnx")
    return ORTModelForSeq2SeqLM, folder + "/onnx"


def provider(folder, devices=2, strict=1):
    """Returns the keywords of from_pretrained that select the provider."""
    options = {"devices": str(devices), "strict": str(strict), "summary": folder + "/summary.json"}
    return dict(provider="TesseraExecutionProvider", provider_options=options)


def is_sharded(folder):
    with open(folder + "/summary.json") as f:
        summary = json.load(f)
    return summary["devices"] == 2 and summary["cut_nodes"] > 0


def encoders(folder):
    for original, output in (("BertForSequenceClassification", "logits"), ("BertForMaskedLM", "logits"), ("BertModel",
                                                                                                          "last_hidden_state")):
        ours, path = export("%s/%s" % (folder, original), original, "BertConfig", BERT)
        inputs = tokenizer()(TEXTS, return_tensors="pt", padding=True)
        want = ours.from_pretrained(path)(**inputs)[output]
        for binding in (False, True):
            got = ours.from_pretrained(path, use_io_binding=binding, **provider(folder))(**inputs)[output]
            assert (got - want).abs().max() < 1e-5 and is_sharded(folder), (original, binding)


def answers(model, inputs):
    """Tokens and scores of greedy search and beam search."""
    found = []
    for beams in (1, 3):
        made = model.generate(**inputs, max_new_tokens=10, num_beams=beams, do_sample=False, output_scores=True,
                              return_dict_in_generate=True)
        found.append((made.sequences.tolist(), made.scores))
    return found


def agree(want, got):
    for (tokens, scores), (others, other_scores) in zip(want, got):
        assert tokens == others, (tokens, others)
        assert all(((a - b).abs()[a.isfinite()] < 1e-4).all() for a, b in zip(scores, other_scores))


def merged_decoders(folder):
    """In the first step optimum passes caches of length 0 to the branch that does not read them. Sharded by the planner, and at random in
    both branches."""
    for original, config, values in SEQ2SEQ:
        ours, path = export_merged("%s/%s" % (folder, original), original, config, values)
        plain = ours.from_pretrained(path)
        assert plain.use_merged
        batches = [
            tokenizer()(texts, return_tensors="pt", padding=True, return_token_type_ids=False) for texts in (TEXTS, TEXTS[:1], ["w9"])
        ]
        want = [answers(plain, inputs) for inputs in batches]
        assert len(set(want[0][0][0][0])) > 2, want[0][0][0]
        models = [ours.from_pretrained(path, **provider(folder, devices, strict=0)) for devices in (2, 3)]
        for seed in range(3):
            devices, cut = 2 + seed % 2, "%s-%d" % (path, seed)
            shutil.copytree(path, cut)
            done = harness.call(BUILD + "/tessera", "annotate", path + "/decoder_model_merged.onnx", "--config", "c:%d" % devices,
                                "--random", seed, "-o", cut + "/decoder_model_merged.onnx")
            assert done[0] == 0, done
            models.append(ours.from_pretrained(cut, **provider(folder, devices)))
            with open(folder + "/summary.json") as f:
                assert json.load(f)["cut_nodes"] > 0
        for model in models:
            for inputs, answer in zip(batches, want):
                agree(answer, answers(model, inputs))


def generators(folder):
    """Greedy search and beam search. T5 has three sessions: encoder, first step of the decoder, later steps."""
    for original, config, values in (("GPT2LMHeadModel", "GPT2Config", GPT2), ("LlamaForCausalLM", "LlamaConfig", LLAMA),
                                     ("T5ForConditionalGeneration", "T5Config", T5)):
        ours, path = export("%s/%s" % (folder, original), original, config, values)
        inputs = tokenizer()(TEXTS, return_tensors="pt", padding=True, return_token_type_ids=False)
        found = []
        for keywords in ({}, provider(folder), dict(use_io_binding=True, **provider(folder))):
            model = ours.from_pretrained(path, **keywords)
            found.append([model.generate(**inputs, max_new_tokens=12, num_beams=beams, do_sample=False).tolist() for beams in (1, 3)])
        assert found[0] == found[1] == found[2] and is_sharded(folder), (original, found)


def a_session_of_the_package(folder):
    from transformers import AutoConfig
    import tessera
    ours, path = export(folder, "BertForSequenceClassification", "BertConfig", BERT)
    inputs = tokenizer()(TEXTS, return_tensors="pt", padding=True)
    model = ours(config=AutoConfig.from_pretrained(path), session=tessera.InferenceSession(path + "/model.onnx", devices=2))
    assert (model(**inputs).logits - ours.from_pretrained(path)(**inputs).logits).abs().max() < 1e-5


def sentence_transformers(folder):
    import numpy as np
    if importlib.util.find_spec("sentence_transformers") is None:
        return "sentence-transformers is not installed"
    from sentence_transformers import CrossEncoder, SentenceTransformer
    _, encoder = export(folder + "/encoder", "BertModel", "BertConfig", BERT)
    _, classifier = export(folder + "/classifier", "BertForSequenceClassification", "BertConfig", BERT)
    for kind, path, use in ((SentenceTransformer, encoder, lambda model: model.encode(TEXTS)),
                            (CrossEncoder, classifier, lambda model: model.predict([("w1 w2", "w3"), ("w5", "w6 w7")]))):
        want, got = (use(kind(path, backend="onnx", device="cpu", model_kwargs={"file_name": "model.onnx", **keywords}))
                     for keywords in ({}, provider(folder)))
        assert np.abs(got - want).max() < 1e-5 and is_sharded(folder), kind


def main():
    absent, other = lacking(), os.environ.pop("OPTIMUM_PYTHON", None)
    if absent and other:
        os.execv(other, [other, "-B", os.path.abspath(__file__), BUILD] + ["all"] * harness.ALL)
    if absent:
        harness.skip("huggingface", "%s is not installed (set OPTIMUM_PYTHON)" % absent[0])
        return
    os.environ.update(HF_HUB_OFFLINE="1", TESSERA_LIBRARY=BUILD + "/libtessera.so")
    sys.path.insert(0, BUILD + "/python")
    warnings.simplefilter("ignore")
    import tessera
    tessera.register()
    harness.run([encoders, generators, merged_decoders, a_session_of_the_package, sentence_transformers])


main()
harness.finish()
