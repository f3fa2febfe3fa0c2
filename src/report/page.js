// SPDX-License-Identifier: Apache-2.0
// page.js - interaction: texts of marks, zooming the timeline, pictures of tensors, the filter, the copy button. Names are always inserted
// as text, never as markup.
(function () {
'use strict';
var $ = function (id) { return document.getElementById(id); };
var all = function (selector, from) { return Array.prototype.slice.call((from || document).querySelectorAll(selector)); };
function make(tag, name, parent) {
    var element = document.createElement(tag);
    if (name) element.className = name;
    if (parent) parent.appendChild(element);
    return element;
}
function data(id) { return $(id) ? JSON.parse($(id).textContent) : null; }
function time(s) {
    if (!s) return '0';
    if (s >= 1) return +s.toPrecision(3) + ' s';
    if (s >= 1e-3) return +(s * 1e3).toPrecision(3) + ' ms';
    return +(s * 1e6).toPrecision(3) + ' \u00b5s';
}
function bytes(n) {
    var units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'], u = 0;
    for (; n >= 1024 && u < 4; u++) n /= 1024;
    return (u && n < 100 ? n.toFixed(1) : Math.round(n)) + ' ' + units[u];
}

// Each cell gets the name of its column, for narrow screens.
all('table.stack').forEach(function (table) {
    var names = all('th', table).map(function (head) { return head.textContent; });
    all('tbody tr', table).forEach(function (row) {
        all('td', row).forEach(function (cell, i) { cell.dataset.column = names[i]; });
    });
});

// Marks: one tab stop per drawing, arrow keys inside. Hover, touch and focus show the same text.
function readout(group) {
    var next = group;
    while (next && !(next.classList && next.classList.contains('readout'))) next = next.nextElementSibling;
    return next;
}
function show(group, words) {
    var place = readout(group);
    if (!place) return;
    place.textContent = words;
    place.classList.add('on');
}
function prepare(group) {
    all('[data-tip]', group).forEach(function (mark, i) {
        mark.setAttribute('tabindex', i ? '-1' : '0');
        mark.setAttribute('role', 'img');
        mark.setAttribute('aria-label', mark.dataset.tip);
    });
}
function watch(group) {
    var onPoint = function (event) {
        var mark = event.target.closest && event.target.closest('[data-tip]');
        if (mark && group.contains(mark)) show(group, mark.dataset.tip);
    };
    ['pointerover', 'pointerdown', 'focusin'].forEach(function (kind) { group.addEventListener(kind, onPoint); });
    group.addEventListener('keydown', function (event) {
        var step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        var marks = all('[data-tip]', group), at = marks.indexOf(document.activeElement);
        if (!step || at < 0) return;
        var next = marks[Math.max(0, Math.min(marks.length - 1, at + step))];
        marks[at].setAttribute('tabindex', '-1');
        next.setAttribute('tabindex', '0');
        next.focus();
        event.preventDefault();
    });
    prepare(group);
}
all('.marks').forEach(watch);

all('input[data-filter]').forEach(function (input) {
    input.addEventListener('input', function () {
        var wanted = input.value.toLowerCase();
        all('#' + input.dataset.filter + ' tbody tr').forEach(function (row) {
            row.hidden = wanted && row.textContent.toLowerCase().indexOf(wanted) < 0;
        });
    });
});

all('button[data-copy]').forEach(function (button) {
    button.addEventListener('click', function () {
        var range = document.createRange(), selection = getSelection();
        range.selectNodeContents($(button.dataset.copy));
        selection.removeAllRanges();
        selection.addRange(range);
        button.textContent = document.execCommand('copy') ? 'Copied' : 'Selected';
    });
});

// The timeline shows a window [from, to] of ticks. A lane that is a number equals that lane.
var KINDS = ['work', 'talk', 'wait'], WORDS = ['computing', 'communicating', 'waiting for other devices'], HEIGHT = 22;
function timeline(id) {
    var box = $(id), doc = data(id + '-data');
    if (!box || !doc) return;
    var svg = box.querySelector('svg'), ticks = box.querySelector('.ticks'), here = svg.querySelector('.here');
    var lanes = [], from = 0, to = doc.ticks, chosen = null;
    doc.lanes.forEach(function (lane, i) {
        if (typeof lane === 'number') { lanes[i] = lanes[lane]; return; }
        var spans = [], end = 0;
        for (var k = 0; k < lane.length; k += 4) {
            var begin = end + lane[k + 2];
            end = begin + lane[k + 3];
            spans.push({ kind: lane[k] % 3, op: doc.ops[Math.floor(lane[k] / 3)], node: doc.nodes[lane[k + 1]], begin: begin, end: end });
        }
        lanes[i] = spans;
    });
    function seconds(t) { return t / doc.ticks * doc.seconds; }
    function x(t) { return (t - from) / (to - from) * 1000; }
    // The first span that ends after t.
    function find(lane, t) {
        var low = 0, high = lane.length;
        while (low < high) {
            var middle = (low + high) >> 1;
            if (lane[middle].end <= t) low = middle + 1; else high = middle;
        }
        return low;
    }
    function drawTicks() {
        var steps = box.clientWidth < 520 ? 2 : 5;
        ticks.textContent = '';
        for (var i = 0; i <= steps; i++) {
            var mark = make('span', '', ticks);
            mark.style.left = 100 * i / steps + '%';
            mark.textContent = time(seconds(from + (to - from) * i / steps));
        }
    }
    // Merges boxes of one kind that nearly touch; the least width is half a unit.
    function drawLane(group, lane, y) {
        var paths = ['', '', ''], open = [null, null, null];
        function close(kind) {
            var box = open[kind];
            if (box) paths[kind] += 'M' + box[0].toFixed(1) + ' ' + y + 'H' + box[1].toFixed(1) + 'v18H' + box[0].toFixed(1) + 'z';
        }
        for (var i = find(lane, from); i < lane.length && lane[i].begin < to; i++) {
            var a = Math.max(0, x(lane[i].begin)), b = Math.min(1000, Math.max(x(lane[i].end), a + 0.5)), kind = lane[i].kind;
            if (open[kind] && a - open[kind][1] < 0.3) {
                open[kind][1] = Math.max(open[kind][1], b);
                continue;
            }
            close(kind);
            open[kind] = [a, b];
        }
        [0, 1, 2].forEach(close);
        all('path', group).forEach(function (path) { path.remove(); });
        paths.forEach(function (d, kind) {
            if (!d) return;
            var path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
            path.setAttribute('class', KINDS[kind]);
            path.setAttribute('d', d);
            group.appendChild(path);
        });
    }
    function draw() {
        all('g[data-lane]', svg).forEach(function (group) { drawLane(group, lanes[+group.dataset.lane], group.dataset.lane * HEIGHT + 2); });
        drawTicks();
        outline();
    }
    function outline() {
        var span = chosen && lanes[chosen.lane][chosen.at];
        if (!span || span.end < from || span.begin > to) { here.setAttribute('width', 0); return; }
        var a = Math.max(0, x(span.begin)), b = Math.min(1000, x(span.end));
        here.setAttribute('x', a);
        here.setAttribute('y', chosen.lane * HEIGHT + 1);
        here.setAttribute('width', Math.max(b - a, 1));
        here.setAttribute('height', HEIGHT - 2);
    }
    function choose(lane, at) {
        var span = lanes[lane] && lanes[lane][at];
        if (!span) return;
        chosen = { lane: lane, at: at };
        var what = span.op ? WORDS[span.kind] + ': ' + span.op + (span.node ? ' ' + span.node : '') : 'mostly ' + WORDS[span.kind];
        show(box.parentNode, 'device ' + doc.devices[lane] + ', ' + what + ', ' + time(seconds(span.end - span.begin)) + ' from ' + time(seconds(span.begin)));
        outline();
    }
    function move(start, width) {
        width = Math.max(doc.ticks / 5000, Math.min(doc.ticks, width));
        from = Math.max(0, Math.min(doc.ticks - width, start));
        to = from + width;
        draw();
    }
    function zoom(factor, around) {
        var width = (to - from) / factor, share = (around - from) / (to - from);
        move(around - width * share, width);
    }
    function follow() {
        var span = lanes[chosen.lane][chosen.at];
        if (span.begin < from || span.end > to) move((span.begin + span.end) / 2 - (to - from) / 2, to - from);
    }
    function at(event) {
        var area = svg.getBoundingClientRect(), t = from + (event.clientX - area.left) / area.width * (to - from);
        var lane = Math.floor((event.clientY - area.top) / HEIGHT);
        if (lane < 0 || lane >= lanes.length) return;
        var k = find(lanes[lane], t);
        if (lanes[lane][k] && lanes[lane][k].begin <= t) choose(lane, k);
    }
    var held = null;
    box.addEventListener('pointerdown', function (event) { held = { x: event.clientX, from: from }; at(event); });
    box.addEventListener('pointermove', function (event) {
        if (!held) { at(event); return; }
        var moved = (event.clientX - held.x) / svg.clientWidth * (to - from);
        if (Math.abs(event.clientX - held.x) > 4) move(held.from - moved, to - from);
    });
    ['pointerup', 'pointercancel', 'pointerleave'].forEach(function (kind) { box.addEventListener(kind, function () { held = null; }); });
    box.addEventListener('keydown', function (event) {
        var key = event.key, lane = chosen ? chosen.lane : 0, k = chosen ? chosen.at : -1;
        if (key === 'ArrowRight') choose(lane, Math.min(lanes[lane].length - 1, k + 1));
        else if (key === 'ArrowLeft') choose(lane, Math.max(0, k - 1));
        else if (key === 'ArrowDown' || key === 'ArrowUp') {
            var next = Math.max(0, Math.min(lanes.length - 1, lane + (key === 'ArrowDown' ? 1 : -1)));
            var t = chosen ? lanes[lane][k].begin : from;
            choose(next, Math.min(lanes[next].length - 1, find(lanes[next], t)));
        } else if (key === '+' || key === '=') zoom(2, chosen ? lanes[lane][k].begin : (from + to) / 2);
        else if (key === '-') zoom(0.5, (from + to) / 2);
        else return;
        event.preventDefault();
        if (chosen) follow();
    });
    all('button[data-zoom="' + id + '"]').forEach(function (button) {
        button.addEventListener('click', function () {
            if (button.dataset.way === 'all') move(0, doc.ticks);
            else zoom(button.dataset.way === 'in' ? 2 : 0.5, (from + to) / 2);
        });
    });
    addEventListener('resize', drawTicks);
    drawTicks();
}
timeline('lanes');
timeline('measured');

// How a tensor is sharded: draws the two most important dimensions; a third sharded one gives several pictures.
// White digits on these colours have a contrast of at least 4.5.
var COLOURS = ['#2f6fd0', '#c0501d', '#1f7f60', '#8a5bc7', '#8a6508', '#b8416f', '#2f7488', '#5f6d29'];
function devices(list) {
    var text = list.slice(0, 12).join(', ') + (list.length > 12 ? ' \u2026' : '');
    return (list.length > 1 ? 'devices ' : 'device ') + text;
}
// Merges equal pieces, with all their devices.
function pieces(cut) {
    var found = {}, list = [];
    cut.boxes.forEach(function (box) {
        var key = box.slice(1).join();
        if (!found[key]) list.push(found[key] = { devices: [], box: box.slice(1) });
        found[key].devices.push(box[0]);
    });
    return list;
}
function axes(cut, list) {
    var order = cut.shape.map(function (size, d) {
        var whole = list.every(function (p) { return p.box[2 * d] === 0 && p.box[2 * d + 1] === size; });
        return { d: d, size: size, cut: !whole };
    });
    order.sort(function (a, b) { return b.cut - a.cut || b.size - a.size || a.d - b.d; });
    return order;
}
function words(cut, piece, bits) {
    var volume = 1, parts = cut.shape.map(function (size, d) {
        var a = piece.box[2 * d], b = piece.box[2 * d + 1];
        volume *= b - a;
        return b - a === size ? 'all ' + size : a + '\u2013' + (b - 1) + ' of ' + size;
    });
    return devices(piece.devices) + ': ' + parts.join(' \u00d7 ') + ', ' + bytes(volume * bits / 8);
}
function frame(parent, cut, rows, columns, list, bits, title) {
    var outer = make('div', 'piece-frame', parent);
    make('p', '', outer).textContent = title;
    var box = make('div', 'piece-box', outer), height = rows ? rows.size : 1, width = columns ? columns.size : 1;
    box.style.aspectRatio = String(Math.max(0.8, Math.min(4, width / height)));
    var whole = list.length === 1 && list[0].devices.length !== 1 || list[0].devices[0] === 'all';
    list.forEach(function (piece) {
        var mark = make('i', '', box), style = mark.style;
        var a = columns ? piece.box[2 * columns.d] : 0, b = columns ? piece.box[2 * columns.d + 1] : 1;
        var c = rows ? piece.box[2 * rows.d] : 0, e = rows ? piece.box[2 * rows.d + 1] : 1;
        style.left = 100 * a / width + '%';
        style.width = 100 * (b - a) / width + '%';
        style.top = 100 * c / height + '%';
        style.height = 100 * (e - c) / height + '%';
        style.background = whole ? '' : COLOURS[piece.devices[0] % COLOURS.length];
        if (whole) mark.classList.add('whole');
        mark.textContent = piece.devices.length > 6 ? piece.devices.slice(0, 5).join(' ') + ' \u2026' : piece.devices.join(' ');
        if ((b - a) / width < 0.04 || (e - c) / height < 0.04) mark.classList.add('small');
        mark.dataset.tip = words(cut, piece, bits);
    });
}
function picture(doc, number) {
    var place = $('pieces'), tensor = doc.tensors[number], cut = doc.cuts[tensor[0]], bits = tensor[1];
    place.textContent = '';
    var list = pieces(cut);
    if (!list.length) list = [{ devices: ['all'], box: [].concat.apply([], cut.shape.map(function (n) { return [0, n]; })) }];
    var order = axes(cut, list), shown = order.slice(0, 2).sort(function (a, b) { return a.d - b.d; });
    var rows = shown.length > 1 ? shown[0] : null, columns = shown[shown.length - 1] || null, third = order[2] && order[2].cut ? order[2] : null;
    var title = (rows ? 'dimension ' + rows.d + ' (' + rows.size + ') down, ' : '') + (columns ? 'dimension ' + columns.d + ' (' + columns.size + ') across' : 'one element');
    if (!third) {
        frame(place, cut, rows, columns, list, bits, title);
    } else {
        var starts = list.map(function (p) { return p.box[2 * third.d]; });
        starts = starts.filter(function (s, i) { return starts.indexOf(s) === i; }).sort(function (a, b) { return a - b; });
        starts.slice(0, 8).forEach(function (start) {
            frame(place, cut, rows, columns, list.filter(function (p) { return p.box[2 * third.d] === start; }), bits,
                'dimension ' + third.d + ' from ' + start + '; ' + title);
        });
    }
    prepare(place);
    show(place, tensor[2] + ' ' + cut.shape.join(' \u00d7 ') + ', ' + (cut.cut ? 'sharded ' + cut.cut : 'replicated on every device') + (cut.more ? '; ' + cut.more + ' more shards' : ''));
}
var tensors = data('tensors-data');
if (tensors) {
    $('tensor').addEventListener('change', function () { picture(tensors, +$('tensor').value); });
    all('a[data-tensor]').forEach(function (link) {
        link.addEventListener('click', function () {
            $('tensor').value = link.dataset.tensor;
            picture(tensors, +link.dataset.tensor);
        });
    });
    var first = tensors.tensors.findIndex(function (tensor) { return pieces(tensors.cuts[tensor[0]]).length > 1; });
    $('tensor').value = Math.max(0, first);
    picture(tensors, Math.max(0, first));
}
})();
