// SPDX-License-Identifier: Apache-2.0
// tensors.js - the largest tensors, and how a tensor is sharded: its two most important dimensions; a third sharded one gives several
// pictures.
'use strict';

const LISTED = 12, PICTURES = 8;
// White digits on these colours have a contrast of at least 4.5.
const COLOURS = ['#2f6fd0', '#c0501d', '#1f7f60', '#8a5bc7', '#8a6508', '#b8416f', '#2f7488', '#5f6d29'];

function shapeWords(shape) {
    return shape.join('\u00d7');
}

function largest(report) {
    if (!report.tensors) return null;
    const { rows, layouts } = report.tensors;
    rows.forEach((row, i) => { row.number = i; });
    return [
        make('h3', null, 'Largest tensors per device'),
        lead('Identical layers are grouped; sizes are per tensor.'),
        table('largest', [
            column('tensor', row => [make('a', { href: '#picture', 'data-tensor': row.number }, row.name), times(row)], 'name'),
            column('kind', row => row.kind),
            column('shape', row => row.type + ' ' + shapeWords(layouts[row.layout].shape)),
            column('full size', row => bytes(row.bytes), 'n'),
            column('per device', row => bytes(row.device_bytes), 'n'),
            column('sharding', row => make('code', null, layouts[row.layout].sharding || 'replicated'), 'name'),
        ], rows.slice(0, LISTED)),
    ];
}

// ---- pieces of a tensor ------------------------------------------------------------------------

// Merges equal pieces, with all their devices. A replicated tensor is one piece.
function piecesOf(layout) {
    const found = new Map();
    for (const [device, ...box] of layout.boxes) {
        const key = box.join();
        if (!found.has(key)) found.set(key, { devices: [], box });
        found.get(key).devices.push(device);
    }
    if (found.size) return [...found.values()];
    return [{ devices: [], box: layout.shape.flatMap(n => [0, n]) }];
}

// Returns the dimensions, the most important first: sharded ones, then large ones.
function dimensions(layout, list) {
    const order = layout.shape.map((size, d) => ({ d, size, sharded: !list.every(p => p.box[2 * d] === 0 && p.box[2 * d + 1] === size) }));
    return order.sort((a, b) => b.sharded - a.sharded || b.size - a.size || a.d - b.d);
}

function deviceWords(list) {
    if (!list.length) return 'all devices';
    return (list.length > 1 ? 'devices ' : 'device ') + list.slice(0, 12).join(', ') + (list.length > 12 ? ' \u2026' : '');
}

function pieceWords(layout, piece, bits) {
    let volume = 1;
    const parts = layout.shape.map((size, d) => {
        const a = piece.box[2 * d], b = piece.box[2 * d + 1];
        volume *= b - a;
        return b - a === size ? 'all ' + size : a + '\u2013' + (b - 1) + ' of ' + size;
    });
    return deviceWords(piece.devices) + ': ' + parts.join(' \u00d7 ') + ', ' + bytes(volume * bits / 8);
}

// Makes a piece as a box to scale.
function pieceBox(piece, rows, columns, whole, words) {
    const range = dimension => dimension ? [piece.box[2 * dimension.d], piece.box[2 * dimension.d + 1], dimension.size] : [0, 1, 1];
    const [left, right, width] = range(columns), [top, bottom, height] = range(rows);
    const mark = make('i', { 'data-tip': words },
        piece.devices.length > 6 ? piece.devices.slice(0, 5).join(' ') + ' \u2026' : piece.devices.join(' ') || 'all');
    mark.classList.toggle('whole', whole);
    mark.classList.toggle('small', (right - left) / width < 0.04 || (bottom - top) / height < 0.04);
    Object.assign(mark.style, {
        left: 100 * left / width + '%',
        width: 100 * (right - left) / width + '%',
        top: 100 * top / height + '%',
        height: 100 * (bottom - top) / height + '%',
        background: whole ? '' : COLOURS[piece.devices[0] % COLOURS.length],
    });
    return mark;
}

function pieceFrame(layout, rows, columns, list, bits, title) {
    const whole = list.length === 1 && list[0].devices.length !== 1;
    const box = make('div.piece-box', null, list.map(piece => pieceBox(piece, rows, columns, whole, pieceWords(layout, piece, bits))));
    box.style.aspectRatio = String(Math.max(0.8, Math.min(4, (columns ? columns.size : 1) / (rows ? rows.size : 1))));
    return make('div.piece-frame', null, make('p', null, title), box);
}

function frames(layout, bits) {
    const list = piecesOf(layout), order = dimensions(layout, list), shown = order.slice(0, 2).sort((a, b) => a.d - b.d);
    const rows = shown.length > 1 ? shown[0] : null, columns = shown[shown.length - 1] || null, third = order[2];
    const title = (rows ? 'dimension ' + rows.d + ' (' + rows.size + ') down, ' : '') +
        (columns ? 'dimension ' + columns.d + ' (' + columns.size + ') across' : 'one element');
    if (!third || !third.sharded) return pieceFrame(layout, rows, columns, list, bits, title);
    const starts = [...new Set(list.map(p => p.box[2 * third.d]))].sort((a, b) => a - b);
    return starts.slice(0, PICTURES).map(start => pieceFrame(layout, rows, columns, list.filter(p => p.box[2 * third.d] === start), bits,
        'dimension ' + third.d + ' from ' + start + '; ' + title));
}

// ---- the section -------------------------------------------------------------------------------

// Makes the section in which a tensor is chosen and drawn. The links of `largest` choose one, too. Calls in `later` need the finished page.
function tensors(report, later) {
    const { rows, layouts } = report.tensors;
    const choice = make('select', { id: 'tensor' }, rows.map((row, i) => make('option', { value: i }, row.name + ' (' + row.kind + ')')));
    const pieces = make('div.pieces marks', { id: 'pieces' });
    const picture = number => {
        const row = rows[number], layout = layouts[row.layout];
        choice.value = number;
        pieces.textContent = '';
        prepare(add(pieces, frames(layout, row.bits)));
        const sharded = layout.sharding ? 'sharded ' + layout.sharding : 'replicated on every device';
        const more = layout.left_out ? '; ' + layout.left_out + ' more shards' : '';
        show(pieces, row.type + ' ' + layout.shape.join(' \u00d7 ') + ', ' + sharded + more);
    };
    choice.addEventListener('change', () => picture(+choice.value));
    watch(pieces);
    later.push(() => {
        for (const link of all('a[data-tensor]')) link.addEventListener('click', () => picture(+link.dataset.tensor));
        picture(Math.max(0, rows.findIndex(row => piecesOf(layouts[row.layout]).length > 1)));
    });
    return section('picture', 'How a tensor is sharded', 'Each shard shows the numbers of the devices that store it. Drawn to scale.',
        make('label.choose', null, 'tensor ', choice), pieces, readout('Point at a shard, tap it or use the arrow keys for details.'));
}
