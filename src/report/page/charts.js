// SPDX-License-Identifier: Apache-2.0
// charts.js - drawings: the plan by layers, bars of memory and of time, devices and links, link load. Every mark has a text in data-tip.
'use strict';

// ---- the plan by layers ------------------------------------------------------------------------

const CELLS = 64; // with more devices, one cell is for several
const SHARDED = {
    replicated: 'replicated',
    columns: 'columns: parts give different elements of the result',
    rows: 'rows: parts give partial sums, which are added',
    entries: 'entries of a lookup table',
    experts: 'experts',
    other: 'several dimensions',
    tokens: 'replicated, different tokens on each device',
};

function cellClass(kind) {
    return 'p-' + (kind === 'replicated' ? 'copy' : kind);
}

// Draws one cell for each device or for several.
function cells(row, devices) {
    const each = Math.ceil(devices / CELLS), having = row.devices.reduce((n, [first, last]) => n + last - first + 1, 0);
    const drawn = make('div.cells', { role: 'img', 'aria-label': 'on ' + having + ' of ' + devices + ' devices' });
    for (let from = 0; from < devices; from += each) {
        const has = row.devices.some(([first, last]) => first < from + each && last >= from);
        add(drawn, make('i.' + (has ? cellClass(row.kind) : 'p-none')));
    }
    return drawn;
}

function compared(plan) {
    const rows = [null, ...plan.compared];
    return [make('h3', null, 'Compared with'), plainTable('compared', [
        column('plan', row => row ? row.name : make('b', null, 'this plan')),
        column('predicted', row => {
            if (!row) return make('b', null, time(plan.milliseconds / 1e3));
            return row.milliseconds === null ? '\u2013' : time(row.milliseconds / 1e3);
        }, 'n'),
        column('why it was not chosen', row => row ? row.reason : ''),
    ], rows, true)];
}

function layers(report) {
    const { rows, left_out: more } = report.layers, plan = report.plan;
    const kinds = Object.keys(SHARDED).filter(kind => rows.some(row => row.kind === kind));
    return section('plan', 'Plan', 'Where the weights of each node are, and how they are sharded.',
        legend(kinds.map(kind => [cellClass(kind), SHARDED[kind]])),
        plainTable('layers', [
            column('nodes', row => [row.name, times(row)], 'name'),
            column('devices 0 to ' + (report.devices - 1), row => cells(row, report.devices)),
            column('sharding of their weights', row => row.sharding + (row.stage === undefined ? '' : '; stage ' + row.stage)),
        ], rows, true),
        more > 0 && lead(more + ' more nodes with smaller weights are in the list of shardings.'),
        plan && plan.compared.length > 0 && compared(plan));
}

// ---- bars --------------------------------------------------------------------------------------

const BARS = 64; // only the first devices are drawn

function barPart(device, kind, share, words) {
    return make('i.' + kind, { style: 'width:' + (100 * share).toFixed(2) + '%', 'data-tip': 'device ' + device + ': ' + words });
}

// Makes the memory of a device as a bar of three parts, with a mark at the limit. `memory` includes the weights, `peak` includes `memory`.
function memoryBar(device, i, limit, scale) {
    const parts = [
        ['work', device.weights, 'of weights'],
        ['held', device.memory - device.weights, 'of inputs and activations at peak'],
        ['wait', device.peak - device.memory, 'of engine overhead'],
    ];
    const share = device.memory / limit, used = share < 0.0005 ? 'below 0.1 %' : percent(share);
    return [
        make('span', null, 'device ' + i),
        make('span.bar', null,
            parts.filter(part => part[1] > 0).map(([kind, n, words]) => barPart(i, kind, n / scale, bytes(n) + ' ' + words)),
            limit > 0 && make('b', { style: 'left:' + (100 * limit / scale).toFixed(2) + '%' })),
        make(limit > 0 && device.memory > limit ? 'span.n bad' : 'span.n', null,
            bytes(device.memory) + (limit > 0 ? ' of ' + bytes(limit) + ', ' + used : '')),
    ];
}

function memoryChart(report) {
    const { timeline, limits } = report.simulation, shown = timeline.slice(0, BARS);
    const scale = timeline.reduce((most, device, i) => Math.max(most, device.peak, limits[i]), 1);
    const words = [['work', 'weights'], ['held', 'inputs and activations at peak'], ['wait', 'engine overhead'], ['limit', 'limit']];
    return [
        legend(words),
        watch(make('div.bars marks', null, shown.map((device, i) => memoryBar(device, i, limits[i], scale)))),
        readout(),
        firstOf(shown.length, timeline.length, 'devices'),
    ];
}

// Makes the time of each device as a bar. Parts below 0.05 % of the time are left out.
function timeChart(report) {
    const { timeline, seconds } = report.simulation, everything = seconds || 1, shown = timeline.slice(0, BARS);
    const bars = shown.map((device, i) => {
        const parts = [device.compute_s, device.communication_s, device.waiting_s].map(s => s / everything);
        return [
            make('span', null, 'device ' + i),
            make('span.bar', null, parts.map((share, k) => share >= 0.0005 && barPart(i, KINDS[k], share,
                time(share * everything) + ' ' + ACTIVITIES[k] + ', ' + percent(share)))),
            make('span.n', null, percent(parts[0]) + ' computing'),
        ];
    });
    return [activityLegend(), watch(make('div.bars marks', null, bars)), readout(), firstOf(shown.length, timeline.length, 'devices')];
}

// ---- devices and links -------------------------------------------------------------------------

const ROUND_DEVICES = 48; // more devices are only listed

// Returns the position of device i on a circle, clockwise from the top.
function place(i, n) {
    const turn = 2 * Math.PI * i / n - Math.PI / 2;
    return n > 1 ? [170 + 120 * Math.cos(turn), 150 + 120 * Math.sin(turn)] : [170, 150];
}

// Draws devices on a circle with lines between them. A line is 3.2 units wide for the fastest link, 0.8 at least.
function circle({ devices, links }) {
    const n = devices.length, fastest = links.reduce((most, link) => Math.max(most, link.bandwidth), 1);
    const radius = n > 24 ? 9 : n > 12 ? 12 : 16;
    const lines = links.map(link => {
        const [x1, y1] = place(link.from, n), [x2, y2] = place(link.to, n);
        const speed = three(link.bandwidth / 1e9) + ' GB/s, ' + three(link.latency * 1e6) + ' \u00b5s';
        const words = 'link ' + link.from + ' \u2192 ' + link.to + ': ' + speed;
        return drawing('line', { x1, y1, x2, y2, 'stroke-width': 0.8 + 2.4 * link.bandwidth / fastest, 'data-tip': words });
    });
    const dots = devices.map((_, i) => {
        const [cx, cy] = place(i, n);
        return [
            drawing('circle', { class: 'dot', cx, cy, r: radius, 'data-tip': 'device ' + i }),
            drawing('text', { x: cx, y: cy + 4, 'text-anchor': 'middle' }, i),
        ];
    });
    const frame = { class: 'round marks', viewBox: '0 0 340 300', role: 'group', 'aria-label': 'devices and links' };
    return [watch(drawing('svg', frame, lines, dots)), readout()];
}

function devices(report) {
    const topology = report.topology, round = topology.links && topology.devices.length <= ROUND_DEVICES;
    const kinds = topology.link_kinds.map(kind =>
        [make('span', null, kind.count + ' links of ' + three(kind.bandwidth / 1e9) + ' GB/s, ' + time(kind.latency)), make('br')]);
    const others = topology.other_links > 0 && make('span', null, topology.other_links + ' other links');
    topology.devices.forEach((device, i) => { device.number = i; });
    return section('devices', 'Devices and links', null, make('div.two', null,
        make('div', null, round && circle(topology), make('p.legend', null, kinds, others)),
        make('div', null, table('devices-table', [
            column('device', device => device.number, 'n'),
            column('name', device => device.name, 'name'),
            column('memory', device => bytes(device.memory), 'n'),
            column('GFLOP/s', device => (device.flops / 1e9).toFixed(1), 'n'),
            column('memory GB/s', device => (device.bandwidth / 1e9).toFixed(1), 'n'),
            column('overhead per node (\u00b5s)', device => (device.overhead * 1e6).toFixed(2), 'n'),
        ], topology.devices))));
}

// ---- link load ---------------------------------------------------------------------------------

const MATRIX = 16, BUSIEST = 24; // with more devices the busiest links are listed

// Draws a matrix of the links: senders are rows, receivers columns. Busier links are darker.
function matrix(links, n, words) {
    const box = make('div.matrix marks', { style: '--n:' + n, role: 'group', 'aria-label': 'link load, senders in rows' }, make('span'));
    for (let to = 0; to < n; to++) add(box, make('span', null, to));
    for (let from = 0; from < n; from++) {
        add(box, make('span', null, from));
        for (let to = 0; to < n; to++) {
            const link = links.find(other => other.from === from && other.to === to);
            const shade = link && (10 + 90 * link.seconds / links[0].seconds).toFixed(0);
            add(box, link ? make('i', { style: '--a:' + shade + '%', 'data-tip': words(link) }) : make(from === to ? 'i.self' : 'i'));
        }
    }
    return [watch(box), readout('Rows send, columns receive.')];
}

function busiest(links, everything, load) {
    const shown = links.slice(0, BUSIEST);
    return [
        make('div.bars', null, shown.map(link => [
            make('span', null, link.from + ' \u2192 ' + link.to),
            make('span.bar', null, make('i.talk', { style: 'width:' + (100 * link.seconds / links[0].seconds).toFixed(2) + '%' })),
            make('span.n', null, load(link)),
        ])),
        everything > shown.length && lead('The ' + shown.length + ' busiest of ' + everything + ' links.'),
    ];
}

// Draws a matrix for few devices, bars for more, and nothing if no link is used.
function linkLoad(report) {
    const { rows, left_out: more } = report.links, { first_s: run, timeline } = report.simulation;
    if (!rows.length || rows[0].seconds <= 0) return null;
    const load = link => bytes(link.bytes) + ', ' + +(run > 0 ? 100 * link.seconds / run : 0).toPrecision(2) + ' % of the time';
    const words = link => link.from + ' \u2192 ' + link.to + ': ' + load(link);
    return [
        make('h3', null, 'Link load'),
        lead('Bytes over each link in one run. The busiest link is ' + words(rows[0]) + '.'),
        timeline.length > MATRIX ? busiest(rows, rows.length + more, load) : matrix(rows, timeline.length, words),
    ];
}
