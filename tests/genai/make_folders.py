# SPDX-License-Identifier: Apache-2.0
"""Makes small generation folders with random weights, one for each architecture of onnxruntime-genai's builder.

usage: make_folders.py OUT [NAME ...]          OUT/NAME-PRECISION for each name (default: all), in fp32 and int4
       make_folders.py --list                  print the names

Needs torch, transformers and onnxruntime-genai. Prints `made FOLDER`, or `skipped FOLDER: REASON` for an architecture that
the installed versions cannot make."""
import contextlib
import io
import json
import os
import runpy
import sys
import tempfile

VOCABULARY, CONTEXT, END = 256, 256, 254
COMMON = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=CONTEXT, bos_token_id=1, eos_token_id=END, pad_token_id=0,
              tie_word_embeddings=False)
LONG_ROPE = dict(rope_scaling=dict(type="longrope", short_factor=[1.0] * 8, long_factor=[2.0] * 8, short_mscale=1.0, long_mscale=1.0),
                 original_max_position_embeddings=64)
EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2)

# name: (configuration class, differences from COMMON, options of the builder)
ARCHITECTURES = {
    "llama": ("LlamaConfig", dict(num_key_value_heads=4), []),
    "llama_1_head": ("LlamaConfig", dict(num_key_value_heads=1), []),
    "llama_3_heads": ("LlamaConfig", dict(num_attention_heads=6, num_key_value_heads=3, hidden_size=96), []),
    "llama_odd_group": ("LlamaConfig", dict(num_attention_heads=6, num_key_value_heads=2, hidden_size=96), []),
    "llama_not_fused": ("LlamaConfig", dict(num_key_value_heads=1), ["fuse_qkv=false"]),
    "llama_tied": ("LlamaConfig", dict(tie_word_embeddings=True), []),
    "llama_shared": ("LlamaConfig", dict(tie_word_embeddings=True), ["shared_embeddings=true"]),
    # Heads of 32 elements: a smaller head splits a block of weights, and ONNX Runtime then rounds other factors to 8 bits.
    "llama_qdq": ("LlamaConfig", dict(hidden_size=128), ["use_qdq=true"]),
    "llama_cache_8_bits": ("LlamaConfig", {}, ["kv_cache_quant_scheme=int8_per_channel", "kv_cache_scale_file=SCALES"]),
    "llama_cache_4_bits": ("LlamaConfig", {}, ["kv_cache_quant_scheme=int4_per_tensor", "kv_cache_scale_file=SCALES"]),
    "mistral": ("MistralConfig", dict(head_dim=16, sliding_window=None), []),
    "mistral_window": ("MistralConfig", dict(head_dim=16, sliding_window=64), []),
    "qwen2": ("Qwen2Config", {}, []),
    "qwen3": ("Qwen3Config", dict(head_dim=16), []),
    "qwen3_1_head": ("Qwen3Config", dict(head_dim=16, num_key_value_heads=1), []),
    "qwen3_norm_fused": ("Qwen3Config", dict(head_dim=16), ["fuse_qk_norm_gqa=true"]),
    "gemma": ("GemmaConfig", dict(head_dim=16, num_key_value_heads=1), []),
    "gemma2": ("Gemma2Config", dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=8), []),
    "gemma3": ("Gemma3TextConfig",
               dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=8, num_hidden_layers=3,
                    layer_types=["sliding_attention", "full_attention", "sliding_attention"]), []),
    "gemma3_1_head": ("Gemma3TextConfig", dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=8, num_key_value_heads=1), []),
    "phi": ("PhiConfig", dict(hidden_size=128, num_key_value_heads=4, partial_rotary_factor=0.5), []),
    "phi3": ("Phi3Config", dict(original_max_position_embeddings=CONTEXT, sliding_window=None), []),
    "phi3_long": ("Phi3Config", dict(LONG_ROPE, sliding_window=None), []),
    "phi3_moe": ("PhimoeConfig", dict(LONG_ROPE, **EXPERTS, sliding_window=None), []),
    "granite": ("GraniteConfig", dict(attention_multiplier=0.25, embedding_multiplier=2.0, residual_multiplier=0.5,
                                      logits_scaling=2.0), []),
    "granite_moe": ("GraniteMoeHybridConfig",
                    dict(EXPERTS, num_local_experts=0, shared_intermediate_size=128, layer_types=["attention"] * 2,
                         position_embedding_type="rope", attention_multiplier=0.25), []),
    "olmo": ("OlmoConfig", {}, []),
    "nemotron": ("NemotronConfig", dict(hidden_size=128, head_dim=32, partial_rotary_factor=0.5), []),
    "smollm3": ("SmolLM3Config", dict(no_rope_layers=[1, 1]), []),
    "ernie": ("Ernie4_5Config", dict(head_dim=16), []),
    "hunyuan": ("HunYuanDenseV1Config", dict(head_dim=16), []),
    "gpt_oss": ("GptOssConfig",
                dict(
                    EXPERTS, head_dim=16, sliding_window=8, layer_types=["sliding_attention", "full_attention"],
                    rope_scaling=dict(rope_type="yarn", factor=2.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                      original_max_position_embeddings=128)), []),
    "lfm2": ("Lfm2Config", dict(layer_types=["conv", "full_attention"], block_ff_dim=128, conv_L_cache=3), []),
    "lfm2_moe": ("Lfm2MoeConfig",
                 dict(layer_types=["conv", "full_attention"], num_dense_layers=1, moe_intermediate_size=64, num_experts=4,
                      num_experts_per_tok=2, conv_L_cache=3), []),
}
PRECISIONS = ("fp32", "int4")


def write_source(name, folder):
    """Writes a configuration, random weights and a tokenizer with one token per character."""
    import tokenizers
    import torch
    import transformers
    kind, changes, _ = ARCHITECTURES[name]
    config = getattr(transformers, kind)(**{**COMMON, **changes})
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():  # larger than the initial values, so that tokens differ
            scale = weight.shape[-1] ** -0.5 if weight.dim() > 1 else 0.1
            mean = 1.0 if weight.dim() == 1 and weight.mean() > 0.5 else 0.0
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale + mean)
    model.save_pretrained(folder)
    characters = tokenizers.Tokenizer(tokenizers.models.WordLevel({chr(256 + k): k for k in range(VOCABULARY)}, unk_token=chr(256)))
    transformers.PreTrainedTokenizerFast(tokenizer_object=characters, bos_token=chr(257), eos_token=chr(256 + END),
                                         pad_token=chr(256)).save_pretrained(folder)
    with open(folder + "/config.json") as f:
        written = json.load(f)
    written["architectures"] = [type(model).__name__.replace("Phimoe", "PhiMoE")]
    for key in ("original_max_position_embeddings", "max_position_embeddings"):  # the builder reads both
        written[key] = changes.get(key, CONTEXT)
        if key in written.get("rope_parameters", {}):
            written["rope_parameters"][key] = written[key]
    if "full_attention" in written.get("rope_parameters", {}):  # the builder reads the keys of earlier transformers versions
        written["rope_parameters"].update(rope_type="default", rope_theta=10000.0)
        type(config).rope_local_base_freq = 10000.0
    with open(folder + "/config.json", "w") as f:
        json.dump(written, f)


def write_scales(path, per_channel):
    """Writes the scales of quantized caches for each layer."""
    size = COMMON["num_key_value_heads"] * COMMON["hidden_size"] // COMMON["num_attention_heads"]
    scales = [[0.05 + 0.001 * i for i in range(size)] if per_channel else 0.5] * COMMON["num_hidden_layers"]
    with open(path, "w") as f:
        json.dump({"scales": {"k_scales": scales, "v_scales": scales}}, f)
    return path


def build(name, precision, source, out, cache):
    options = [
        option if not option.endswith("=SCALES") else option.replace(
            "SCALES", write_scales(source + "/scales.json", "per_channel" in str(ARCHITECTURES[name][2])))
        for option in ARCHITECTURES[name][2]
    ]
    sys.argv = ["builder", "-i", source, "-o", out, "-p", precision, "-e", "cpu", "-c", cache]
    if options:
        sys.argv += ["--extra_options", *options]
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__", alter_sys=True)


def make(name, out):
    with tempfile.TemporaryDirectory(prefix="tessera-source-") as d:
        for precision in PRECISIONS:
            folder, said = os.path.join(out, "%s-%s" % (name, precision)), io.StringIO()
            if os.path.exists(folder + "/genai_config.json"):
                continue
            try:
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                    if not os.path.exists(d + "/config.json"):
                        write_source(name, d)
                    build(name, precision, d, folder, d + "/cache")
                print("made", folder, flush=True)
            except (Exception, SystemExit) as e:
                print("skipped %s: %s" % (folder, (str(e) or type(e).__name__).replace("\n", " ")[:300]), flush=True)


def main(words):
    if words == ["--list"]:
        print("\n".join(ARCHITECTURES))
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in words[1:] or ARCHITECTURES:
        make(name, os.path.abspath(words[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
