// SPDX-License-Identifier: Apache-2.0
// weights.js - leaves the data of weights out of an ONNX model and puts it back, so that a model of any size can be planned in a browser.
//
// A model is bytes of Protocol Buffers. It is read by ranges, and never where weights are. A tensor whose data is left out says that its
// data is in a file that does not exist; its "offset" is the key of what was left out. Everything else stays as it is, byte for byte, also
// what is malformed: the commands report that.
//
// Used by the page (putBack, listNodes, atSource) and by the worker (leaveOut).
'use strict';

const Weights = (() => {
    const ABSENT = 'data-left-out'; // name of the file that does not exist
    const SMALL = 1 << 16; // bytes of data that stay: shapes and other numbers with which commands compute
    const DEEP = 100; // graphs and attributes inside of each other
    const WINDOW = 1 << 18; // bytes that are read at a time
    const REST = 1 << 20; // bytes of a malformed end that are kept

    // The messages that lead to tensors, by field.
    const INSIDE = {
        model: { 7: 'graph', 25: 'function' },
        graph: { 1: 'node', 5: 'tensor', 15: 'sparse' },
        node: { 5: 'attribute' },
        function: { 7: 'node', 11: 'attribute' },
        attribute: { 5: 'tensor', 6: 'graph', 10: 'tensor', 11: 'graph', 22: 'sparse', 23: 'sparse' },
        sparse: { 1: 'tensor', 2: 'tensor' },
    };
    const DIMS = 1, TYPE = 2, RAW = 9, EXTERNAL = 13, LOCATION = 14;
    const DATA = [4, 5, 7, RAW, 10, 11]; // fields with elements; strings (6) stay
    // Bytes of an element, by type; 4-bit types have half a byte.
    const ELEMENT = { 1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 14: 8, 15: 16, 16: 2, 17: 1, 18: 1, 19: 1,
        20: 1, 21: 0.5, 22: 0.5, 23: 0.5, 24: 1 };

    // ---- reading -----------------------------------------------------------------------------------

    // Reads ranges of a source: { size, read(from, to) }, whose function returns bytes at once.
    class Source {
        constructor({ size, read }) {
            this.size = size;
            this.read = read;
            this.from = this.to = 0;
        }
        at(position) {
            if (position < this.from || position >= this.to) {
                this.from = position;
                this.to = Math.min(this.size, position + WINDOW);
                this.window = this.read(this.from, this.to);
            }
            return this.window[position - this.from];
        }
        // Reads a number. Returns it with the position behind it, or null where it does not end in time. More than 53
        // bits are not exact.
        number(position, end) {
            let value = 0, scale = 1;
            for (let i = 0; i < 10 && position < end; i++, scale *= 128) {
                const byte = this.at(position++);
                value += (byte & 127) * scale;
                if (byte < 128) return [value, position];
            }
            return null;
        }
        // Reads a field: number, kind, begin, begin of the payload, end; or null if it is malformed.
        field(position, end) {
            const tag = this.number(position, end);
            if (!tag) return null;
            const kind = tag[0] % 8, field = { number: Math.floor(tag[0] / 8), kind, from: position, payload: tag[1], to: 0, value: 0 };
            if (kind === 0 || kind === 2) {
                const number = this.number(tag[1], end);
                if (!number) return null;
                [field.value, field.payload] = number;
            }
            const length = kind === 2 ? field.value : kind === 1 ? 8 : kind === 5 ? 4 : kind === 0 ? 0 : NaN;
            field.to = field.payload + length;
            return field.to <= end ? field : null; // false for NaN
        }
        fields(from, end) {
            const list = [];
            for (let field; from < end; from = field.to) {
                field = this.field(from, end);
                if (!field) return null;
                list.push(field);
            }
            return list;
        }
        text(field) {
            return new TextDecoder().decode(this.read(field.payload, field.to));
        }
    }

    function ofBytes(bytes) {
        return new Source({ size: bytes.length, read: (from, to) => bytes.subarray(from, to) });
    }

    // ---- writing -----------------------------------------------------------------------------------

    function number(value) {
        const bytes = [];
        for (; value > 127; value = Math.floor(value / 128)) bytes.push(value % 128 + 128);
        return [...bytes, value];
    }

    function delimited(field, bytes) {
        return [...number(field * 8 + 2), ...number(bytes.length), ...bytes];
    }

    function entry(key, value) {
        const text = words => [...new TextEncoder().encode(words)];
        return delimited(EXTERNAL, [...delimited(1, text(key)), ...delimited(2, text(value))]);
    }

    // The pieces of a new model: ranges of the source, of another file, or new bytes.
    class Pieces {
        constructor() {
            this.list = [];
            this.length = 0;
        }
        add(piece) {
            const last = this.list[this.list.length - 1];
            this.length += piece.to - piece.from;
            if (last && !last.bytes && !piece.bytes && last.other === piece.other && last.to === piece.from) last.to = piece.to;
            else if (piece.to > piece.from) this.list.push(piece);
        }
        range(from, to, other) {
            this.add({ from, to, other: Boolean(other) });
        }
        bytes(bytes) {
            this.add({ from: 0, to: bytes.length, bytes: new Uint8Array(bytes) });
        }
        all(pieces) {
            for (const piece of pieces.list) this.add({ ...piece });
        }
    }

    // Copies a message and what is inside. tensor(source, fields, out) writes the fields of a tensor, or returns false to copy them.
    function rewrite(source, kind, from, end, tensor, out, depth) {
        if (kind === 'tensor') {
            const fields = source.fields(from, end);
            if (!fields || !tensor(source, fields, out)) out.range(from, end);
            return;
        }
        for (let field; from < end; from = field.to) {
            field = source.field(from, end);
            if (!field) {
                out.range(from, Math.min(end, from + REST));
                return;
            }
            const inner = field.kind === 2 && depth < DEEP && INSIDE[kind][field.number];
            if (!inner) {
                out.range(field.from, field.to);
                continue;
            }
            const made = new Pieces();
            rewrite(source, inner, field.payload, field.to, tensor, made, depth + 1);
            if (made.length === field.value && made.list.every(piece => !piece.bytes && !piece.other)) {
                out.range(field.from, field.to);
                continue;
            }
            out.bytes([...number(field.number * 8 + 2), ...number(made.length)]);
            out.all(made);
        }
    }

    // ---- weights -----------------------------------------------------------------------------------

    // Returns how many bytes the elements of a tensor have.
    function sizeOf(source, fields) {
        let count = 1, type = 0;
        for (const field of fields) {
            if (field.number === TYPE) type = field.value;
            if (field.number !== DIMS) continue;
            if (field.kind === 0) count *= field.value;
            for (let at = field.payload; field.kind === 2 && at < field.to;) {
                const [size, next] = source.number(at, field.to) || [NaN, field.to];
                count *= size;
                at = next;
            }
        }
        return Math.ceil(count * ELEMENT[type]);
    }

    // Returns the model without the data of its weights, what was left out, and `places`: where pieces are in the model and in the source.
    function leaveOut(from) {
        const source = new Source(from), out = new Pieces(), left = [];
        rewrite(source, 'model', 0, source.size, (_, fields, pieces) => {
            const data = fields.filter(field => DATA.includes(field.number));
            if (data.length !== 1 || data[0].kind !== 2 || data[0].value <= SMALL) return false;
            if (fields.some(field => field.number === LOCATION || field.number === EXTERNAL)) return false;
            const size = data[0].number === RAW ? data[0].value : sizeOf(source, fields);
            if (!(size <= Number.MAX_SAFE_INTEGER)) return false;
            for (const field of fields)
                if (field !== data[0]) pieces.range(field.from, field.to);
                else pieces.bytes([...entry('location', ABSENT), ...entry('offset', String(left.length * 4096)),
                    ...entry('length', String(size)), ...number(LOCATION * 8), 1]);
            left.push([data[0].from, data[0].to]);
            return true;
        }, out, 0);
        const bytes = new Uint8Array(out.length), places = [];
        let at = 0;
        for (const piece of out.list) {
            bytes.set(piece.bytes || source.read(piece.from, piece.to), at);
            if (!piece.bytes) places.push([at, piece.from]);
            at += piece.to - piece.from;
        }
        return { bytes, left, places };
    }

    // Returns a message of a command with positions in the source, where it names some of the model.
    function atSource(places, message) {
        return message.replace(/(?<=^ *at byte )\d+/gm, at => {
            const piece = places.findLast(([place]) => place <= at);
            return piece ? piece[1] + Number(at) - piece[0] : at;
        });
    }

    // Returns key and value of an entry of external data.
    function entryOf(source, field) {
        const texts = {};
        for (const part of source.fields(field.payload, field.to) || []) if (part.kind === 2) texts[part.number] = source.text(part);
        return [texts[1], texts[2]];
    }

    // Returns the pieces of a model whose data is put back: bytes, or a range [from, to] of the file from which it was left out.
    function putBack(bytes, left) {
        const out = new Pieces();
        rewrite(ofBytes(bytes), 'model', 0, bytes.length, (source, fields, pieces) => {
            const entries = new Map(fields.filter(field => field.number === EXTERNAL).map(field => entryOf(source, field)));
            const range = entries.get('location') === ABSENT && left[entries.get('offset') / 4096];
            if (!range) return false;
            let first = true;
            for (const field of fields) {
                if (field.number !== EXTERNAL && field.number !== LOCATION) pieces.range(field.from, field.to);
                else if (first) pieces.range(...range, true);
                first = first && field.number !== EXTERNAL && field.number !== LOCATION;
            }
            return true;
        }, out, 0);
        return out.list.map(piece => piece.other ? [piece.from, piece.to] : piece.bytes || bytes.subarray(piece.from, piece.to));
    }

    // Returns the nodes of the main graph: { name, op, inputs, outputs }.
    function listNodes(bytes) {
        const source = ofBytes(bytes), nodes = [];
        for (const graph of (source.fields(0, bytes.length) || []).filter(field => field.number === 7 && field.kind === 2))
            for (const node of source.fields(graph.payload, graph.to) || []) {
                if (node.number !== 1 || node.kind !== 2) continue;
                const texts = { 1: [], 2: [], 3: [], 4: [] };
                for (const field of source.fields(node.payload, node.to) || [])
                    if (texts[field.number]) texts[field.number].push(source.text(field));
                nodes.push({ inputs: texts[1], outputs: texts[2], name: texts[3][0] || '', op: texts[4][0] || '' });
            }
        return nodes;
    }

    return { leaveOut, putBack, listNodes, atSource };
})();

if (typeof module === 'object') module.exports = Weights;
