# SPDX-License-Identifier: Apache-2.0
"""Exports one model of the zoo: a real architecture with random weights, as its exporter writes it.

usage: export.py NAME FOLDER      writes FOLDER/NAME/model.onnx and FOLDER/NAME/inputs.npz
       export.py --list           prints the names

Each recipe is a function. A derived model (quantized, fused, float16) is made from the file of another recipe."""
import logging, os, sys, warnings

logging.disable(logging.WARNING)
warnings.filterwarnings("ignore")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np

RECIPES = {}


def recipe(function):
    RECIPES[function.__name__] = function
    return function


def save_inputs(folder, inputs):
    np.savez(os.path.join(folder, "inputs.npz"), **inputs)


# ---- torch -------------------------------------------------------------------------------------

def export_torch(module, inputs, dynamic, folder, dynamo, opset):
    """inputs: name -> tensor; dynamic: name -> {axis: symbol}."""
    import torch
    path, names = os.path.join(folder, "model.onnx"), list(inputs)
    options = dict(input_names=names, output_names=["y"], opset_version=opset, dynamo=dynamo)
    if dynamo:
        torch.onnx.export(module, tuple(inputs.values()), dynamic_shapes=tuple(dynamic[n] for n in names), verbose=False,
                          **options).save(path, external_data=False)
    else:
        torch.onnx.export(module, tuple(inputs.values()), path, dynamic_axes=dynamic, **options)
    save_inputs(folder, {k: v.numpy() for k, v in inputs.items()})


def language_model(cls, config, folder, dynamo, attention="sdpa", opset=18):
    import torch
    import transformers
    from transformers.integrations.executorch import sdpa_mask_without_vmap
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    ALL_MASK_ATTENTION_FUNCTIONS.register("sdpa", sdpa_mask_without_vmap)  # torch.export cannot trace the default mask with symbolic sizes
    torch.manual_seed(0)
    config._attn_implementation = attention
    model = getattr(transformers, cls)(config).eval()

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):
            found = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True,
                               **({"use_cache": False} if "Causal" in cls or "LMHead" in cls else {}))
            return found.logits if hasattr(found, "logits") else found.last_hidden_state

    inputs = dict(input_ids=torch.randint(1, config.vocab_size, (2, 16)), attention_mask=torch.ones(2, 16, dtype=torch.int64))
    sizes = {0: "batch", 1: "seq"}
    with torch.no_grad():
        export_torch(Logits(), inputs, dict(input_ids=sizes, attention_mask=sizes), folder, dynamo, opset)


def vision_model(module, folder, dynamo=False, size=32, batch=4, opset=17):
    import torch
    torch.manual_seed(0)
    with torch.no_grad():
        export_torch(module.eval(), dict(x=torch.randn(batch, 3, size, size)), dict(x={0: "batch"}), folder, dynamo, opset)


SMALL = dict(vocab_size=512, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128)


@recipe
def llama_dynamo(folder):
    import transformers
    language_model("LlamaForCausalLM", transformers.LlamaConfig(num_key_value_heads=2, **SMALL), folder, True)


@recipe
def mistral_dynamo(folder):
    import transformers
    language_model("MistralForCausalLM", transformers.MistralConfig(num_key_value_heads=2, sliding_window=8, **SMALL), folder, True)


@recipe
def bert_torchscript(folder):
    import transformers
    language_model("BertModel", transformers.BertConfig(**SMALL), folder, False, "eager", 17)


@recipe
def gpt2_torchscript(folder):
    import transformers
    language_model("GPT2LMHeadModel", transformers.GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=4), folder,
                   False, "eager", 17)


@recipe
def vit_dynamo(folder):
    import timm
    vision_model(timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=10),
                 folder, True, opset=18)


@recipe
def densenet_torchscript(folder):
    import torchvision
    vision_model(torchvision.models.DenseNet(growth_rate=16, block_config=(2, 2), num_init_features=32, num_classes=10), folder, size=48)


@recipe
def mobilenet_torchscript(folder):
    import timm
    vision_model(timm.create_model("mobilenetv3_small_050", num_classes=10), folder, size=48)


@recipe
def resnet_torchscript(folder):
    import torchvision
    from torchvision.models.resnet import BasicBlock
    vision_model(torchvision.models.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10), folder)


# ---- derived -----------------------------------------------------------------------------------

def beside(folder, name):
    """The model and inputs that another recipe has written."""
    other = os.path.join(os.path.dirname(folder), name)
    with np.load(os.path.join(other, "inputs.npz")) as found:
        inputs = {k: found[k] for k in found.files}
    save_inputs(folder, inputs)
    return os.path.join(other, "model.onnx"), inputs


def quantize_static(folder, base, form, **types):
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process
    source, inputs = beside(folder, base)
    prepared = os.path.join(folder, "prepared.onnx")
    quant_pre_process(source, prepared, skip_symbolic_shape=True)

    class Reader(q.CalibrationDataReader):
        left = [inputs]

        def get_next(self):
            return self.left.pop() if self.left else None

    q.quantize_static(prepared, os.path.join(folder, "model.onnx"), Reader(), quant_format=form, **types)


@recipe
def densenet_qoperator(folder):
    from onnxruntime import quantization as q
    quantize_static(folder, "densenet_torchscript", q.QuantFormat.QOperator, activation_type=q.QuantType.QUInt8,
                    weight_type=q.QuantType.QInt8)


@recipe
def resnet_qoperator(folder):
    from onnxruntime import quantization as q
    quantize_static(folder, "resnet_torchscript", q.QuantFormat.QOperator, activation_type=q.QuantType.QUInt8,
                    weight_type=q.QuantType.QInt8, per_channel=True)


@recipe
def resnet_qdq16(folder):
    from onnxruntime import quantization as q
    quantize_static(folder, "resnet_torchscript", q.QuantFormat.QDQ, activation_type=q.QuantType.QUInt16, weight_type=q.QuantType.QInt8)


@recipe
def bert_dynamic8(folder):
    from onnxruntime import quantization as q
    source, _ = beside(folder, "bert_torchscript")
    q.quantize_dynamic(source, os.path.join(folder, "model.onnx"), weight_type=q.QuantType.QInt8)


@recipe
def llama_int4(folder):
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    source, _ = beside(folder, "llama_dynamo")
    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=16, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(os.path.join(folder, "model.onnx"))


@recipe
def bert_fused(folder):
    from onnxruntime.transformers import optimizer
    source, _ = beside(folder, "bert_torchscript")
    optimizer.optimize_model(source, model_type="bert", num_heads=4, hidden_size=64,
                             opt_level=0).save_model_to_file(os.path.join(folder, "model.onnx"))


@recipe
def resnet_float16(folder):
    import onnx
    from onnxconverter_common import float16
    source, _ = beside(folder, "resnet_torchscript")
    onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), os.path.join(folder, "model.onnx"))


def written_by_engine(folder, base, level):
    import onnxruntime
    source, _ = beside(folder, base)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = level
    options.optimized_model_filepath = os.path.join(folder, "model.onnx")
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


@recipe
def resnet_engine99(folder):
    import onnxruntime
    written_by_engine(folder, "resnet_torchscript", onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)


@recipe
def resnet_qoperator_engine99(folder):
    import onnxruntime
    written_by_engine(folder, "resnet_qoperator", onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)


# ---- classical ---------------------------------------------------------------------------------

def classical(folder, model, convert=None):
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 8)).astype("f4")
    y = (x[:, 0] * x[:, 1] + x[:, 2] > 0.2).astype("i8")
    model.fit(x, y)
    kinds = [("x", FloatTensorType([None, 8]))]
    made = convert(model, kinds) if convert else to_onnx(model, initial_types=kinds,
                                                         options={"zipmap": False} if hasattr(model, "classes_") else None, target_opset=17)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    with open(os.path.join(folder, "model.onnx"), "wb") as f:
        f.write(made.SerializeToString())
    save_inputs(folder, {made.graph.input[0].name: x})


@recipe
def sklearn_forest(folder):
    from sklearn.ensemble import RandomForestClassifier
    classical(folder, RandomForestClassifier(20, random_state=0))


@recipe
def sklearn_svc(folder):
    from sklearn.svm import SVC
    classical(folder, SVC(random_state=0))


@recipe
def sklearn_pipeline(folder):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    classical(folder, make_pipeline(StandardScaler(), LogisticRegression()))


@recipe
def sklearn_mlp(folder):
    from sklearn.neural_network import MLPClassifier
    classical(folder, MLPClassifier((16, 16), max_iter=50, random_state=0))


@recipe
def xgboost_trees(folder):
    import xgboost
    from onnxmltools import convert_xgboost
    classical(folder, xgboost.XGBRegressor(n_estimators=20, max_depth=4),
              lambda model, kinds: convert_xgboost(model, initial_types=kinds, target_opset=15))


if __name__ == "__main__":
    if sys.argv[1] == "--list":
        print("\n".join(RECIPES))
    else:
        target = os.path.join(sys.argv[2], sys.argv[1])
        os.makedirs(target, exist_ok=True)
        RECIPES[sys.argv[1]](target)
