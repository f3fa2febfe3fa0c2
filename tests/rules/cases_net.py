# SPDX-License-Identifier: Apache-2.0
"""Cases for prove.py: convolutions, pooling, sampling, signals, recurrent layers, attention, experts, text, rows."""
import numpy as np
from onnx import TensorProto as T

MS, NCHWC, ML, TRAIN, PREVIEW = "com.microsoft:", "com.microsoft.nchwc:", "ai.onnx.ml:", "ai.onnx.preview.training:", "ai.onnx.preview:"


def cases(p):
    case, Host, floats, ints = p.case, p.Host, p.floats, p.ints
    host = lambda *v: Host(np.array(v, np.int64))
    scalar = lambda v: Host(np.int64(v))
    u8 = lambda *s: ints(*s, low=0, high=255, dtype=np.uint8)
    i8 = lambda *s: ints(*s, low=-60, high=60, dtype=np.int8
                         )  # sums of two products with bytes stay below 2 ** 15, so that no kernel saturates
    f = lambda v: np.array(v, np.float32)
    away = lambda *s: floats(*s, low=0.5, high=2)
    byte = lambda v: np.array(v, np.uint8)
    i32 = lambda *v: np.array(v, np.int32)
    words = lambda *s: np.array([["red", "green", "blue sky", "a b c"][i] for i in ints(int(np.prod(s)), low=0, high=4)], object).reshape(s)
    whole = lambda *inputs, **k: [case(*inputs, whole=True, **k)]

    def regions(n, *size):
        """Corners (x1, y1, x2, y2) of regions."""
        return np.concatenate([floats(n, 2, low=0, high=2.5), floats(n, 2, low=3, high=size[0] - 1)], 1).astype(np.float32)

    conv = [
        case(floats(2, 4, 5, 6), floats(6, 4, 3, 3), floats(6)),
        case(floats(3, 6, 5), floats(4, 3, 2), floats(4), group=2, pads=[1, 0], strides=[2]),
        case(floats(2, 4, 5, 5), floats(4, 1, 3, 3), floats(4), group=4, auto_pad="SAME_UPPER"),
        case(floats(2, 4, 5, 6), floats(6, 4, 1, 1), floats(6)),
        case(floats(2, 4, 5, 6), floats(6, 4, 1, 3), dilations=[1, 2]),
        case(floats(2, 6, 3, 4, 3), floats(4, 6, 2, 2, 2)),
        case(floats(2, 3, 5), floats(4, 3, 1), strides=[2]),
        case(floats(2, 4, 5), floats(6, 4, 1), kernel_shape=[1], pads=[0, 1]),
        case(floats(2, 4, 5, 6), floats(6, 4, 3, 3), floats(6), symbols=[("batch", 4, 5, 6)]),
        case(floats(1, 8, 4, 4), floats(8, 2, 3, 3), floats(8), group=4, opset=10)
    ]
    transpose = [
        case(floats(2, 4, 3, 4), floats(4, 6, 3, 3), floats(6)),
        case(floats(2, 4, 5), floats(4, 3, 2), floats(6), group=2, strides=[2]),
        case(floats(2, 4, 3), floats(4, 1, 3), group=4, output_padding=[1], strides=[2], pads=[1, 1]),
        case(floats(2, 4, 3, 3), floats(4, 5, 1, 1), floats(5)),
        case(floats(2, 4, 3), floats(4, 5, 3), output_shape=[7], strides=[2]),
        case(floats(2, 4, 4, 5), floats(4, 3, 2, 2), floats(3), strides=[2, 2]),
        case(floats(2, 2, 5, 4), floats(2, 3, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1]),
        case(floats(1, 2, 5, 7), floats(2, 3, 3, 3), strides=[2, 2], pads=[1, 0, 1, 1], output_padding=[1, 0]),
        case(floats(2, 2, 6), floats(2, 3, 3), dilations=[2], strides=[3], pads=[2, 1]),
        case(floats(2, 2, 5), floats(2, 3, 2), strides=[3]),
        case(floats(2, 2, 5), floats(2, 3, 5), pads=[4, 3]),
        case(floats(1, 2, 6), floats(2, 2, 3), strides=[2], auto_pad="SAME_UPPER"),
        case(floats(2, 2, 4), floats(2, 3, 1), strides=[2], auto_pad="SAME_LOWER"),
        case(floats(2, 2, 4), floats(2, 3, 1), strides=[3], auto_pad="SAME_UPPER", output_padding=[1])
    ]
    blocks = floats(4, 32, 6, 5)
    integer = [case(u8(2, 4, 5, 5), u8(6, 4, 3, 3)), case(u8(2, 4, 5, 5), u8(6, 4, 3, 3), byte(7), byte(9), pads=[1, 1, 1, 1]),
               case(u8(2, 4, 5, 5), u8(6, 2, 3, 3), byte(7), byte(3), group=2), case(u8(2, 4, 5), u8(6, 4, 1), byte(3))]

    def qconv(x, w, *bias, ws=None, wz=None, **k):
        return case(x, f(0.02), byte(120), w, f(0.03) if ws is None else ws, byte(99) if wz is None else wz, f(0.3), byte(100), *bias, **k)

    bias32 = lambda n: ints(n, low=-500, high=500, dtype=np.int32)
    qlinear = [
        qconv(u8(2, 4, 5, 5), u8(6, 4, 3, 3)),
        qconv(u8(2, 4, 5, 5), u8(6, 4, 3, 3), bias32(6), pads=[1, 1, 1, 1]),
        qconv(u8(2, 4, 5, 5), u8(6, 2, 3, 3), bias32(6), group=2),
        qconv(u8(2, 4, 5, 5), i8(6, 4, 3, 3), bias32(6), ws=away(6) / 30, wz=np.zeros(6, np.int8)),
        qconv(u8(2, 4, 5, 5), i8(6, 4, 3, 3), bias32(6), ws=away(6) / 30, wz=p.Host(np.full(6, -3, np.int8)), pads=[1, 0, 1, 2],
              strides=[2, 1], dilations=[1, 2]),
        qconv(u8(2, 6, 7), i8(4, 3, 3), ws=away(4) / 30, wz=p.Host(np.zeros(4, np.int8)), group=2, auto_pad="SAME_UPPER"),
        case(i8(2, 5, 6, 4), f(0.02), np.array(-7, np.int8), i8(3, 5, 3, 2), f(0.03), np.array(4, np.int8), f(0.3), np.array(9, np.int8),
             bias32(3), pads=[1, 1, 1, 0])
    ]
    small = lambda *s: floats(*s, low=-0.4, high=0.4)
    deform = [
        case(floats(2, 4, 4, 4), floats(6, 4, 2, 2), small(2, 8, 3, 3), floats(6), floats(2, 4, 3, 3)),
        case(floats(2, 4, 4, 4), floats(6, 2, 2, 2), small(2, 16, 3, 3), group=2, offset_group=2),
        case(floats(2, 4, 4, 4), floats(6, 2, 2, 2), small(2, 16, 3, 3), floats(6), floats(2, 8, 3, 3), group=2, offset_group=2),
        case(floats(2, 4, 4, 4), floats(6, 4, 2, 2), small(2, 16, 3, 3), offset_group=2)
    ]
    far = lambda *s: floats(*s, low=-7, high=7)
    deform += [
        case(floats(1, 4, 7, 5), floats(6, 2, 3, 2), far(1, 12, 4, 4), floats(6), group=2, pads=[1, 0, 2, 1], strides=[2, 1],
             dilations=[1, 2]),
        case(floats(2, 3, 9, 1), floats(2, 3, 1, 3), far(2, 6, 5, 3), None, floats(2, 3, 5, 3), pads=[0, 2, 0, 2], strides=[2, 1])
    ]
    beyond = far(2, 6, 5, 3)  # offsets that exceed 64-bit integers, and NaN, next to small ones
    beyond.reshape(-1)[::4] = np.resize(np.array([np.inf, 1e30, np.nan, -1e30, -np.inf], np.float32), beyond.size // 4)
    deform += [case(floats(2, 3, 9, 4), floats(2, 3, 1, 3), beyond, pads=[0, 2, 0, 2], strides=[2, 2])]
    causal = [
        case(floats(2, 4, 6), floats(4, 1, 3), floats(4), floats(2, 4, 2), outputs=2),
        case(floats(3, 5, 6), floats(5, 1, 2), activation="silu", outputs=2)
    ]
    images = floats(2, 3, 6, 5)
    pools = [
        case(images, kernel_shape=[2, 2]),
        case(images, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 0]),
        case(floats(3, 4, 7), kernel_shape=[3], ceil_mode=1, strides=[2]),
        case(images, kernel_shape=[2, 2], auto_pad="SAME_LOWER"),
        case(floats(2, 4, 3, 3, 3), kernel_shape=[2, 2, 2]),
        case(images, kernel_shape=[1, 2]),
        case(images, kernel_shape=[2, 2], symbols=[("batch", 3, 6, 5)]),
        case(images, kernel_shape=[2, 2], opset=10),
        case(images, kernel_shape=[2, 2], dilations=[2, 1], auto_pad="SAME_UPPER"),
        case(images, kernel_shape=[2, 3], dilations=[3, 2], strides=[2, 1], auto_pad="SAME_LOWER", ceil_mode=1)
    ]

    def recurrent(gates, cell, directions=1, lengths=False, states=False, b=4, h=3, **k):
        inputs = [floats(5, b, 2), floats(directions, gates * h, 2), floats(directions, gates * h, h), floats(directions, 2 * gates * h)]
        inputs += [ints(b, low=1, high=6, dtype=np.int32) if lengths else None]
        if states:
            inputs += [floats(directions, b, h)] * (2 if cell else 1) + ([floats(directions, 3 * h)] if cell else [])
        return case(*inputs, outputs=3 if cell else 2, hidden_size=h, direction={1: "forward", 2: "bidirectional"}[directions], **k)

    def layers(gates, cell):
        first = recurrent(gates, cell)
        # The directions have different activations.
        names = {
            1: ["Tanh", "Relu"], 3: ["Sigmoid", "Tanh", "HardSigmoid", "Relu"],
            4: ["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Relu", "Tanh"]
        }[gates]
        leaky = recurrent(gates, cell, 2, activations=[x.replace("Relu", "LeakyRelu") for x in names], activation_alpha=[0.3] * len(names))
        inputs = (np.moveaxis(first["inputs"][0], 0, 1),) + first["inputs"][1:4]
        return [
            first,
            recurrent(gates, cell, 2, True),
            recurrent(gates, cell, 1, True, True),
            recurrent(gates, cell, 2, False, True, b=3),
            dict(first, outputs=".y" + "." * cell),
            case(*inputs, outputs=2, layout=1, hidden_size=3, opset=21),
            recurrent(gates, cell, 2, activations=names), leaky
        ]

    # ---- attention: sizes (batch, key heads, queries of each, rows, keys, head, values)
    def attention(flat, g=2, mask=None, past=0, outputs=1, h=4, b=3, q=4, k=5, d=8, v=8, length=False, boolean=False, **attributes):
        shape = (lambda heads, rows, size: (b, rows, heads * size)) if flat else (lambda heads, rows, size: (b, heads, rows, size))
        inputs = [floats(*shape(h * g, q, d)), floats(*shape(h, k, d)), floats(*shape(h, k, v))]
        inputs += [None if mask is None else p.bools(*mask) if boolean else floats(*mask)]
        inputs += [floats(b, h, past, d), floats(b, h, past, v)] if past else [None, None] if length else []
        inputs += [ints(b, low=1, high=k + 1)] if length else []
        while inputs[-1] is None:
            inputs.pop()
        heads = dict(q_num_heads=h * g, kv_num_heads=h) if flat else {}
        return case(*inputs, outputs=outputs, **heads, **attributes)

    def hiding_mask(low):
        mask = np.zeros((4, 5), np.float32)
        mask[0], mask[1, :4], mask[2, 1:] = low, low, low
        return mask

    def hiding(low, *more, **attributes):
        """A mask of numbers: one row sees no key, one only its last, one only its first, one all."""
        mask = hiding_mask(low)
        made = attention(*more, mask=(4, 5), **attributes)
        return dict(made, inputs=made["inputs"][:3] + (mask if low < 0 else mask == 0,))

    onnx_attention = [hiding(low, flat, g) for low in (-np.inf, np.finfo(np.float32).min, 1) for flat, g in ((False, 1), (True, 2))]
    onnx_attention += [hiding(low, True, 1, is_causal=1) for low in (-np.inf, 1)]
    short = hiding(np.finfo(np.float16).min, False, 1)
    onnx_attention += [dict(short, inputs=tuple(x.astype(np.float16) for x in short["inputs"]))]
    onnx_attention += [
        attention(False),
        attention(False, 1),
        attention(True),
        attention(True, 1),
        attention(True, 2, h=1),
        attention(False, mask=(4, 5)),
        attention(True, mask=(3, 8, 4, 5)),
        attention(False, mask=(3, 1, 4, 5)),
        attention(False, mask=(1, 8, 4, 5)),
        attention(False, mask=(8, 4, 5), g=2),
        attention(True, mask=(4, 5), boolean=True, g=1),
        attention(False, is_causal=1),
        attention(True, is_causal=1, past=2, outputs=3),
        attention(False, past=3, outputs=4, v=6),
        attention(True, v=6, outputs="y..y", scale=0.3),
        attention(False, softcap=2.0, g=1),
        attention(False, length=True, opset=24),
        attention(True, 1, mask=(4, 8), past=3, outputs=3),
        dict(attention(True, b=2, q=3, k=3), symbols=[("batch", "seq", 64), ("batch", "seq", 32), ("batch", "seq", 32)]),
        dict(attention(False, b=2, q=3, k=3, mask=(2, 1, 3, 3)), symbols=[("batch", 8, "seq", 8), ("batch", 4, "seq", 8),
                                                                          ("batch", 4, "seq", 8), ("batch", 1, "seq", "seq")])
    ]
    flex = [
        case(floats(3, 8, 4, 6), floats(3, 4, 5, 6), floats(3, 4, 5, 4)),
        case(floats(3, 4, 4, 6), floats(3, 4, 5, 6), floats(3, 4, 5, 6), scale=0.2)
    ]

    def linear(rule, g=2, decay=None, beta=None, state=False, b=3, t=4, h=4, d=3, e=6, inverse=1, shared=1):
        inputs = [
            floats(b, t, h * g * d),
            small(b, t, h * inverse // shared * d),
            floats(b, t, h * inverse * e),
            floats(b, h * inverse, d, e) if state else None
        ]
        inputs += [None if decay is None else -away(b, t, decay), None if beta is None else away(b, t, beta) / 2]
        while inputs[-1] is None:
            inputs.pop()
        return case(*inputs, outputs=2, q_num_heads=h * g, kv_num_heads=h * inverse, update_rule=rule)

    linears = [
        linear("linear"),
        linear("linear", 1, state=True),
        linear("gated", decay=12),
        linear("gated", decay=4, state=True),
        linear("delta", beta=4),
        linear("delta", 1, beta=1),
        linear("gated_delta", decay=4, beta=4, state=True),
        linear("gated_delta", 1, decay=12, beta=1)
    ]
    tables = lambda e, n=9: [floats(n, e), floats(n, e)]
    places = lambda *s: ints(*s, low=0, high=9)
    rotary = [
        case(floats(2, 4, 3, 8), *tables(4), places(2, 3)),
        case(floats(2, 3, 32), *tables(4), places(2, 3), num_heads=4),
        case(floats(2, 4, 3, 8), floats(2, 3, 4), floats(2, 3, 4)),
        case(floats(2, 3, 32), floats(2, 3, 4), floats(2, 3, 4), num_heads=4, interleaved=1),
        case(floats(2, 4, 3, 8), *tables(2), places(2, 3), rotary_embedding_dim=4)
    ]
    rotary_ms = [
        case(floats(2, 3, 32), places(2, 3), *tables(4), num_heads=4),
        case(floats(2, 4, 3, 8), places(2, 3), *tables(4)),
        case(floats(2, 3, 32), places(2, 3), *tables(4)),
        case(floats(2, 3, 32), np.array([2], np.int64), *tables(4), num_heads=4),
        case(floats(2, 3, 32), places(2, 3), *tables(4), num_heads=4, interleaved=1)
    ]

    # ---- fused attention
    heads = dict(num_heads=4)
    multi = [
        case(floats(2, 3, 32), floats(2, 5, 32), floats(2, 5, 32), **heads),
        case(floats(2, 3, 32), floats(2, 5, 32), floats(2, 5, 48), **heads),
        case(floats(2, 3, 32), floats(2, 5, 32), floats(2, 5, 32), floats(96), **heads),
        case(floats(2, 3, 32), floats(2, 5, 32), floats(2, 5, 32), None, i32([1, 1, 1, 1, 0], [1, 1, 0, 0, 0]), **heads),
        case(floats(2, 3, 32), floats(2, 5, 32), floats(2, 5, 32), None, i32(4, 2), **heads),
        case(floats(2, 3, 32), floats(2, 3, 32), floats(2, 3, 32), None, None, floats(2, 4, 3, 3), **heads),
        case(floats(2, 3, 32), floats(2, 3, 32), floats(2, 3, 32), None, None, floats(1, 1, 3, 3), **heads),
        case(floats(2, 3, 32), floats(2, 3, 32), floats(2, 3, 32), None, None, None, floats(2, 4, 2, 8), floats(2, 4, 2, 8), outputs=3,
             **heads),
        case(floats(2, 3, 32), floats(2, 4, 5, 8), floats(2, 4, 5, 8), **heads),
        case(floats(2, 3, 32), floats(2, 3, 32), floats(2, 3, 32), unidirectional=1, **heads)
    ]
    multi += [
        case(floats(2, 4, 32), floats(2, 5, 32), floats(2, 5, 32), None, None,
             hiding_mask(low).reshape(1, 1, 4, 5), **heads) for low in (-np.inf, np.finfo(np.float32).min)
    ]
    length = lambda n: Host(np.array(n, np.int32))
    masked = [
        case(floats(2, 1, 32), floats(2, 1, 32), floats(2, 1, 32), None, None, floats(2, 4, 6, 8), floats(2, 4, 6, 8), Host(i32(3)),
             outputs=3, num_heads=4, past_present_share_buffer=1)
    ]
    projected = [
        case(floats(2, 3, 10), floats(10, 96), floats(96), **heads),
        case(floats(2, 3, 10), floats(10, 96), floats(96), i32(3, 2), **heads),
        case(floats(2, 3, 10), floats(10, 96), floats(96), i32([1, 1, 1], [1, 1, 0]), **heads),
        case(floats(2, 3, 10), floats(10, 96), floats(96), None, floats(2, 2, 4, 5, 8), outputs=2, **heads),
        case(floats(2, 3, 10), floats(10, 96), floats(96), None, None, floats(2, 4, 3, 3), **heads),
        case(floats(2, 3, 10), floats(10, 96), floats(96), qkv_hidden_sizes=[32, 32, 32], unidirectional=1, **heads),
        case(floats(2, 3, 10), floats(10, 80), floats(80), qkv_hidden_sizes=[32, 32, 16], whole=True, **heads)
    ]
    quantized = [case(u8(2, 3, 10), u8(10, 96), floats(96), f(0.02), f(0.03), i32(3, 2), byte(120), byte(99), **heads),
                 case(u8(2, 3, 10), i8(10, 96), floats(96), f(0.02), away(96) / 50, None, byte(120), i8(96), **heads)]
    packed = [case(floats(7, 10), floats(10, 96), floats(96), i32([0, 1, 2, 3], [4, 5, 6, 7]), i32(0, 4, 7), **heads)]
    packed_multi = [
        case(floats(7, 32), floats(7, 32), floats(7, 32), None, i32([0, 1, 2, 3], [4, 5, 6, 7]), i32(0, 4, 7), **heads),
        case(floats(7, 32), floats(7, 32), floats(7, 32), floats(96), i32([0, 1, 2, 3], [4, 5, 6, 7]), i32(0, 4, 7), floats(2, 4, 4, 4),
             **heads),
        case(floats(7, 4, 3, 8), None, None, None, i32([0, 1, 2, 3], [4, 5, 6, 7]), i32(0, 4, 7), **heads)
    ]
    grouped = dict(num_heads=8, kv_num_heads=4)
    group = [
        case(floats(2, 3, 128), floats(2, 3, 64), floats(2, 3, 64), None, None, i32(2, 2), length(3), outputs=3, **grouped),
        # no padding: rows after the end of a sequence are uninitialized (ONNX Runtime 1.19)
        case(floats(2, 3, 128), floats(2, 3, 64), floats(2, 3, 64), None, None, i32(2, 2), length(3), *tables(8, 12), do_rotary=1,
             outputs=3, **grouped),
        case(floats(3, 1, 128), floats(3, 1, 64), floats(3, 1, 64), floats(3, 4, 5, 16), floats(3, 4, 5, 16), i32(5, 3, 4), length(6),
             *tables(8, 12), do_rotary=1, outputs=3, **grouped),
        case(floats(2, 3, 256), None, None, None, None, i32(2, 2), length(3), outputs=3, **grouped),
        case(floats(2, 1, 128), floats(2, 1, 64), floats(2, 1, 64), floats(2, 4, 5, 16), floats(2, 4, 5, 16), i32(5, 5), length(6),
             *tables(8, 12), places(2, 1), do_rotary=1, outputs=3, **grouped),
        case(floats(2, 3, 128), floats(2, 3, 64), floats(2, 3, 64), None, None, i32(2, 2), length(3), None, None, None, floats(2, 8, 3, 3),
             floats(8), outputs=3, **grouped),
        case(floats(2, 3, 64), floats(2, 3, 64), floats(2, 3, 64), None, None, i32(2, 2), length(3), outputs=3, local_window_size=2,
             num_heads=4, kv_num_heads=4),
        case(floats(2, 3, 128), floats(2, 3, 64), floats(2, 3, 64), None, None, i32(2, 2), length(3), outputs=3,
             symbols=[("batch", "seq", 128), ("batch", "seq", 64), ("batch", "seq", 64), (), (), ("batch", )], **grouped)
    ]

    def sparse(layouts, b=2, h=4, g=2, d=16, t=32, blocks=2):
        rows = np.tile(i32(0, 1, 3), (layouts, 1))
        cols = np.tile(i32(0, 0, 1), (layouts, 1))
        if layouts > 1:
            rows[1], cols[1] = i32(0, 1, 2), i32(0, 1, 0)
        return case(floats(b, t, h * g * d), floats(b, t, h * d), floats(b, t, h * d),
                    floats(b, h, t, d) * 0,
                    floats(b, h, t, d) * 0, rows, cols, length(t), np.full(b, t, np.int32), outputs=3, num_heads=h * g, kv_num_heads=h,
                    sparse_block_size=16, scale=0.25)

    paged = [
        case(floats(5, 128), floats(5, 64), floats(5, 64), floats(4, 4, 4, 16), floats(4, 4, 4, 16), i32(0, 3, 5), i32(2, 3),
             i32([0, 2], [3, 1]), outputs=3, **grouped),
        case(floats(5, 256), None, None, floats(4, 4, 4, 16), floats(4, 4, 4, 16), i32(0, 3, 5), i32(2, 3), i32([0, 2], [3, 1]), outputs=3,
             whole=False, **grouped),
        case(floats(5, 128), floats(5, 64), floats(5, 64), floats(4, 4, 4, 16), floats(4, 4, 4, 16), i32(0, 3, 5), i32(2, 3),
             i32([0, 2], [3, 1]), None, None, None, floats(8), outputs=3, **grouped)
    ]

    def experts(rows, fused=1, n=3, m=4, i=6, third=False, bias=True, k=2, **attributes):
        tokens = int(np.prod(rows))
        inputs = [
            floats(*rows, m),
            floats(tokens, n),
            floats(n, fused * i, m),
            floats(n, fused * i) if bias else None,
            floats(n, m, i),
            floats(n, m) if bias else None
        ]
        inputs += [floats(n, i, m)] if third else []
        while inputs[-1] is None:
            inputs.pop()
        return case(*inputs, attributes=dict(k=k), **attributes)

    moe = [
        experts((5, ), activation_type="relu"),
        experts((2, 3), activation_type="gelu", normalize_routing_weights=1),
        experts((5, ), 2, activation_type="swiglu", swiglu_fusion=1),
        experts((5, ), activation_type="silu", bias=False),
        experts((2, 3), activation_type="silu", normalize_routing_weights=1)
    ]

    odd = experts((5,), activation_type="relu")  # tokens that do not select the first expert must not see its NaN
    odd["inputs"][1][::2, 0], odd["inputs"][5][0] = -9, np.nan
    moe.append(odd)

    def quantized_experts(rows, bits=4, block=0, fused=1, n=3, m=32, i=64, points=False, bias=False, **attributes):
        tokens, b = int(np.prod(rows)), 8 // bits
        blocks = (lambda *s: (*s[:-1], s[-1] // block)) if block else (lambda *s: s[:-1])
        inputs = [
            floats(*rows, m),
            floats(tokens, n),
            u8(n, fused * i, m // b),
            away(*blocks(n, fused * i, m)) / 30,
            floats(n, fused * i) if bias else None,
            u8(n, m, i // b),
            away(*blocks(n, m, i)) / 30,
            floats(n, m) if bias else None, None, None, None
        ]
        if points:
            inputs += [u8(n, fused * i, m // block // b), u8(n, m, i // block // b)]
        while inputs[-1] is None:
            inputs.pop()
        more = dict(block_size=block) if block else {}
        return case(*inputs, attributes=dict(k=2), expert_weight_bits=bits, **more, **attributes)

    qmoe = [
        quantized_experts((5, ), activation_type="relu"),
        quantized_experts((2, 3), 8, activation_type="silu", bias=True),
        quantized_experts((5, ), 4, 16, activation_type="relu"),
        quantized_experts((5, ), 4, 16, 2, activation_type="swiglu", swiglu_fusion=1),
        quantized_experts((5, ), 4, 16, points=True, activation_type="relu")
    ]

    def weights(n, k=32, block=16):
        return [u8(n, k // block, block // 2), away(n, k // block)]

    nbits = dict(K=32, bits=4, block_size=16)
    node = dict(nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[1, 0, 0], nodes_values=[0.1, 0.0, 0.0],
                nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
                nodes_hitrates=[1.0, 1.0, 1.0], nodes_missing_value_tracks_true=[0, 0, 0])
    regressor = dict(node, n_targets=2, target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 1], target_weights=[3.0, 5.0])
    classifier = dict(node, classlabels_int64s=[4, 5, 6], class_treeids=[0, 0], class_nodeids=[1, 2], class_ids=[0, 2],
                      class_weights=[1.0, 1.0], post_transform="NONE")
    svm = dict(kernel_params=[0.0, 0.0, 3.0], kernel_type="LINEAR", coefficients=[0.5, -0.25, 0.75], rho=[0.1])
    tree = dict(n_targets=2, aggregate_function=1, post_transform=0, tree_roots=[0], nodes_modes=p.tensor(np.array([0], np.uint8)),
                nodes_featureids=[1], nodes_splits=p.tensor(f([0.1])), nodes_truenodeids=[0], nodes_trueleafs=[1], nodes_falsenodeids=[1],
                nodes_falseleafs=[1], leaf_targetids=[0, 1], leaf_weights=p.tensor(f([3.0, 5.0])))
    step = lambda n, kinds: case(np.float32(0.1), np.int64(3), *(away(3, 4) if k % n == 0 else away(5)
                                                                 for k in range(n * kinds)), outputs=n * (kinds - 1))
    lists = ["OptionalHasElement", "SequenceEmpty"]
    elsewhere = [
        "ConcatFromSequence", "Optional", "OptionalGetElement", "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert",
        "SequenceLength", "SplitToSequence"
    ]  # see prove.py
    return {
        "Conv": conv,
        "ConvTranspose": transpose,
        "ConvInteger": integer,
        "QLinearConv": qlinear,
        "DeformConv": deform,
        "CausalConvWithState": causal,
        MS + "CausalConvWithState": causal + [case(floats(2, 6, 4), floats(4, 1, 3), floats(4), outputs=2, channels_last=1)],
        "Col2Im": [
            case(floats(2, 12, 9), host(4, 4), host(2, 2)),
            case(floats(2, 9, 4), host(4, 4), host(3, 3)),
            case(floats(3, 10, 15), host(5, 5), host(1, 5), pads=[0, 1, 0, 1]),
            case(floats(2, 12, 9), np.array([4, 4]), np.array([2, 2]), declare=[(2, 3, 4, 4)]),
        ],
        "AveragePool": pools + [case(images, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
            # One window of two elements in a row of one: the engine divides by 3, with pads by 6.
            case(floats(2, 3, 5, 1), kernel_shape=[3, 2], strides=[1, 2], count_include_pad=1)],
        "LpPool": (
            [c for c in pools if c["opset"] is None]
            + [
                case(images, kernel_shape=[2, 2], attributes=dict(p=1)),
                case(floats(2, 2, 9, 5), kernel_shape=[2, 2], dilations=[2, 2], strides=[2, 3], pads=[0, 0, 1, 0], ceil_mode=1),
            ]
        ),
        "MaxPool": pools + [case(images, kernel_shape=[2, 2], outputs=2), case(images, kernel_shape=[1, 1], dilations=[1, 1])],
        "MaxUnpool": whole(floats(1, 1, 2, 2), ints(1, 1, 2, 2), kernel_shape=[2, 2]),
        "GridSample": [
            case(images, floats(2, 4, 3, 2, low=-1, high=1)),
            case(floats(2, 3, 4, 4, 4), floats(2, 3, 2, 4, 3, low=-1, high=1), opset=20),
        ],
        "AffineGrid": whole(floats(2, 2, 3), host(2, 3, 4, 5)),
        "ImageDecoder": whole(u8(30)),
        "RoiAlign": [
            case(floats(2, 3, 8, 8), regions(5, 8), ints(5, low=0, high=2), output_height=3, output_width=2, sampling_ratio=2),
            case(floats(1, 4, 6, 6), regions(3, 6), np.zeros(3, np.int64), mode="max", opset=16),
        ],
        "MaxRoiPool": [
            case(
                floats(2, 3, 8, 8),
                np.concatenate([ints(4, 1, low=0, high=2), ints(4, 2, low=0, high=4), ints(4, 2, low=4, high=8)], 1).astype(np.float32),
                pooled_shape=[2, 2],
            )
        ],
        "DFT": (
            [case(floats(3, 4, 8, 2), None, scalar(a), opset=20) for a in (1, 2, -2)]
            + [
                case(floats(3, 8, 1), onesided=1, opset=20),
                case(floats(3, 8, 1), Host(np.int64(6)), opset=20),
                case(floats(3, 4, 8, 2), axis=2, opset=17),
                case(floats(3, 8, 1), opset=19),
                case(floats(3, 8, 2), None, np.array(1), opset=20, whole=True),
            ]
        ),
        "STFT": [
            case(floats(3, 16, 1), Host(np.int64(4)), floats(8), Host(np.int64(8))),
            case(floats(3, 16, 1), Host(np.int64(4)), None, Host(np.int64(8)), onesided=0),
        ],
        **{w: whole(scalar(8)) for w in ("HannWindow", "HammingWindow", "BlackmanWindow")},
        "MelWeightMatrix": (
            whole(scalar(8), scalar(16), scalar(8192), np.array(0, np.float32), np.array(4096, np.float32))
            + whole(scalar(8), scalar(16), scalar(8192), Host(np.float32(0)), Host(np.float32(4096)), output_datatype=6)
        ),
        "LSTM": layers(4, True),
        "GRU": layers(3, False) + [recurrent(3, False, linear_before_reset=1)],
        "RNN": layers(1, False),
        "Attention": onnx_attention,
        PREVIEW + "FlexAttention": flex,
        "LinearAttention": linears,
        MS + "LinearAttention": linears + [linear("linear", 1, inverse=2), linear("delta", beta=4, shared=2)],
        "RotaryEmbedding": rotary,
        MS + "RotaryEmbedding": rotary_ms,
        MS + "MRotaryEmbedding": [case(floats(2, 3, 32), places(3, 2, 3), *tables(4), num_heads=4, mrope_section=[2, 1, 1])],
        MS + "GemmaRotaryEmbedding": [
            case(floats(2, 3, 6), floats(2, 4, 3, 6), floats(2, 4, 3, 6), floats(2, 4, 3, 6), floats(2, 4, 3, 6), outputs=2)
        ],
        MS + "MultiHeadAttention": multi,
        MS + "DecoderMaskedMultiHeadAttention": masked,
        MS + "Attention": projected,
        MS + "QAttention": quantized,
        MS + "PackedAttention": packed,
        MS + "PackedMultiHeadAttention": packed_multi,
        MS + "GroupQueryAttention": group,
        MS + "SparseAttention": [sparse(1), sparse(2), sparse(2, g=1)],
        MS + "PagedAttention": paged,
        MS + "MoE": moe,
        MS + "QMoE": qmoe,
        MS + "GatedRMSNorm": [case(floats(2, 3, 12), floats(4), floats(2, 3, 12)), case(floats(5, 6), floats(6), floats(5, 6))],
        MS + "LinearAttentionGate": [
            case(floats(2, 3, 4), floats(4), floats(4), floats(2, 3, 4), outputs=2),
            case(floats(2, 3, 4), floats(4), floats(4)),
        ],
        MS + "BiasSplitGelu": [case(floats(2, 3, 8), floats(8))],
        **{op: [] for op in elsewhere},
        **{
            op: whole(floats(3, 4))
            for op in lists + [
                "If",
                "Loop",
                "Scan",
                "SequenceMap",
                MS + "GreedySearch",
                MS + "BeamSearch",
                MS + "Sampling",
                TRAIN + "Gradient",
            ]
        },
        "Scan": whole(floats(3, 4)) + whole(floats(3, 4), opset=8),
        "NonMaxSuppression": whole(floats(1, 6, 4), floats(1, 1, 6)),
        "StringConcat": [case(words(3, 4), words(4)), case(words(5), words(5))],
        "RegexFullMatch": [case(words(3, 4), pattern=".*e.*"), case(words(6), pattern="red")],
        "StringNormalizer": whole(words(4)),
        "StringSplit": whole(words(4)),
        "TfIdfVectorizer": [
            case(
                ints(3, 6, low=0, high=5),
                max_gram_length=2,
                min_gram_length=2,
                max_skip_count=0,
                mode="TF",
                ngram_counts=[0, 4],
                ngram_indexes=[0, 1, 2, 3, 4, 5, 6],
                pool_int64s=[2, 3, 5, 4, 5, 1, 1, 2, 2, 2],
            ),
            case(
                ints(6, low=0, high=5),
                max_gram_length=1,
                min_gram_length=1,
                max_skip_count=0,
                mode="TF",
                ngram_counts=[0],
                ngram_indexes=[0, 1],
                pool_int64s=[2, 3],
                whole=True,
            ),
        ],
        ML + "ArrayFeatureExtractor": [
            case(floats(3, 5), np.array([[1, 3]], np.int64)),
            case(floats(5), np.array([1, 3], np.int64), whole=True),
        ],
        ML + "Binarizer": [case(floats(3, 4), threshold=0.3)],
        ML + "LabelEncoder": [
            case(ints(3, 4, low=0, high=3), keys_int64s=[0, 1, 2], values_int64s=[7, 5, 9]),
            case(words(5), keys_strings=["red", "green"], values_floats=[1.5, 2.5]),
        ],
        ML + "TreeEnsemble": [case(floats(5, 3), **tree)],
        TRAIN + "Adagrad": [step(1, 3), step(2, 3)],
        TRAIN + "Adam": [step(1, 4), step(2, 4)],
        ML + "Imputer": [case(p.special(5, 3), imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("inf"))],
        ML + "Scaler": [case(floats(5, 3), offset=[0.5, 1.0, 2.0], scale=[2.0, 3.0, 4.0])],
        ML + "Normalizer": [case(floats(5, 3), norm=n) for n in ("MAX", "L1", "L2")],
        ML + "LinearRegressor": [case(floats(5, 3), coefficients=[0.5, 1.0, 2.0, 3.0, 4.0, 5.0], intercepts=[1.0, 2.0], targets=2)],
        ML + "SVMRegressor": [case(floats(5, 3), n_supports=0, **svm)],
        ML + "TreeEnsembleRegressor": [case(floats(5, 3), **regressor)],
        ML + "TreeEnsembleClassifier": [case(floats(5, 3), outputs=2, **classifier)],
        ML + "LinearClassifier": [
            case(
                floats(5, 2),
                outputs=2,
                coefficients=[0.5, 1.0, -2.0, 3.0, 1.0, -1.0],
                intercepts=[1.0, 0.0, 0.5],
                classlabels_ints=[3, 5, 7],
                multi_class=1,
            )
        ],
        ML + "SVMClassifier": [
            case(
                floats(5, 3),
                outputs=2,
                kernel_type="LINEAR",
                kernel_params=[0.0, 0.0, 3.0],
                coefficients=[0.5, -0.25, 0.75, 1.0, 2.0, -1.0],
                rho=[0.1, 0.2],
                classlabels_ints=[3, 5],
            )
        ],
        ML + "OneHotEncoder": [case(ints(3, 4, low=0, high=4), cats_int64s=[0, 1, 3])],
        ML + "FeatureVectorizer": [case(floats(5, 2), floats(5, 3), inputdimensions=[2, 3])],
        ML + "CategoryMapper": [case(ints(3, 4, low=0, high=3), cats_int64s=[0, 1, 2], cats_strings=["a", "b", "c"])],
        **{ML + op: whole(floats(3, 4)) for op in ("CastMap", "DictVectorizer", "ZipMap")},
        MS + "FusedConv": [
            case(floats(2, 4, 5, 6), floats(6, 4, 3, 3), floats(6), activation="Relu"),
            case(floats(2, 4, 5, 5), floats(6, 2, 1, 1), floats(6), floats(2, 6, 5, 5), group=2, activation="Relu"),
        ],
        MS + "MatMulNBitsMlp": [
            case(floats(2, 3, 32), None, None, *weights(6), None, *weights(6), N=6, activation="silu", **nbits),
            case(
                floats(2, 3, 32),
                floats(2, 3, 32),
                floats(32),
                *weights(6),
                floats(6),
                *weights(6),
                floats(6),
                N=6,
                activation="silu",
                outputs=2,
                **nbits,
            ),
        ],
        MS + "MatMulNBitsQkv": [
            case(floats(2, 3, 32), None, floats(32), *weights(8), None, *weights(4), None, *weights(4), Nq=8, Nkv=4, outputs=3, **nbits),
            case(
                floats(2, 3, 32),
                floats(2, 3, 32),
                floats(32),
                *weights(8),
                floats(8),
                *weights(4),
                floats(4),
                *weights(4),
                floats(4),
                Nq=8,
                Nkv=4,
                outputs=4,
                **nbits,
            ),
        ],
        # 32 channels are complete blocks on every CPU; kernels that pack them exist where blocks exist.
        NCHWC + "Conv": [
            case(blocks, floats(32, 32, 3, 3), floats(32), pads=[1, 1, 1, 1]),
            case(blocks, floats(32, 32, 1, 1), floats(32), floats(4, 32, 6, 5), activation="Relu"),
        ],
        NCHWC + "MaxPool": [case(blocks, kernel_shape=[2, 2], strides=[2, 2])],
        NCHWC + "AveragePool": [case(blocks, kernel_shape=[3, 2], pads=[1, 0, 1, 0], count_include_pad=1)],
        NCHWC + "GlobalMaxPool": [case(blocks)],
        NCHWC + "GlobalAveragePool": [case(blocks)],
        NCHWC + "Upsample": [case(blocks, scales=[1, 1, 2, 3], mode="nearest")],
        NCHWC + "ReorderInput": [case(blocks), case(floats(4, 6, 5, 32), channels_last=1)],
        NCHWC + "ReorderOutput": [case(blocks, channels=30), case(blocks, channels=32, channels_last=1)],
        MS + "QGemm": [
            case(u8(5, 4), f(0.02), byte(120), i8(4, 6), f(0.03), np.array(0, np.int8), bias32(6), f(0.3), byte(100), alpha=1.0),
            case(u8(5, 4), f(0.02), byte(120), i8(6, 4), away(6) / 30, np.zeros(6, np.int8), bias32(6), transB=1),
            case(u8(4, 5), f(0.02), byte(120), u8(4, 6), f(0.03), byte(9), None, f(0.3), byte(100), transA=1),
        ],
        **{
            MS + op: whole(floats(3, 4))
            for op in (
                "DynamicQuantizeLSTM",
                "NhwcFusedConv",
                "NhwcMaxPool",
                "QEmbedLayerNormalization",
                "QLinearConv",
                "QLinearReduceMean",
            )
        },
        MS + "QuantizeLinear": [case(floats(3, 4), f(0.02), np.array(3, np.uint16)), case(floats(3, 4), away(4) / 20, u8(4), axis=1)],
        MS + "DequantizeLinear": [case(u8(3, 4), f(0.02), byte(3)), case(i8(3, 4), away(3) / 20, i8(3), axis=0)],
        TRAIN + "Momentum": [
            dict(c, attributes=dict(alpha=0.9, beta=0.5, mode="standard", norm_coefficient=0.1)) for c in (step(1, 3), step(2, 3))
        ],
    }
