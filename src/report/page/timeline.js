// SPDX-License-Identifier: Apache-2.0
// timeline.js - the timeline of all devices, which can be zoomed: it shows a window [from, to] of ticks.
'use strict';

const HEIGHT = 22;

// Returns the spans of each lane. A lane that is a number equals that lane.
function lanesOf(doc) {
    const lanes = [];
    for (const lane of doc.lanes) {
        if (typeof lane === 'number') {
            lanes.push(lanes[lane]);
            continue;
        }
        const spans = [];
        let end = 0;
        for (let k = 0; k < lane.length; k += 4) {
            const begin = end + lane[k + 2];
            end = begin + lane[k + 3];
            spans.push({ kind: lane[k] % 3, op: doc.ops[Math.floor(lane[k] / 3)], node: doc.nodes[lane[k + 1]], begin, end });
        }
        lanes.push(spans);
    }
    return lanes;
}

// Returns the index of the first span that ends after t.
function firstAfter(lane, t) {
    let low = 0, high = lane.length;
    while (low < high) {
        const middle = (low + high) >> 1;
        if (lane[middle].end <= t) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Returns a path of each kind with the boxes of a lane between two times. Boxes of one kind that nearly touch are merged; the least width
// is half a unit.
function lanePaths(lane, from, to, y) {
    const paths = ['', '', ''], open = [null, null, null], x = t => (t - from) / (to - from) * 1000;
    const close = kind => {
        const box = open[kind];
        if (box) paths[kind] += 'M' + box[0].toFixed(1) + ' ' + y + 'H' + box[1].toFixed(1) + 'v18H' + box[0].toFixed(1) + 'z';
    };
    for (let i = firstAfter(lane, from); i < lane.length && lane[i].begin < to; i++) {
        const a = Math.max(0, x(lane[i].begin)), b = Math.min(1000, Math.max(x(lane[i].end), a + 0.5)), kind = lane[i].kind;
        if (open[kind] && a - open[kind][1] < 0.3) {
            open[kind][1] = Math.max(open[kind][1], b);
            continue;
        }
        close(kind);
        open[kind] = [a, b];
    }
    [0, 1, 2].forEach(close);
    return paths;
}

// Makes the names of the lanes, with a line between stages.
function laneNames(doc, stages) {
    const stage = i => stages ? stages[doc.devices[i]] : -1;
    return make('div.names', null, doc.devices.map((device, i) =>
        make(i > 0 && stage(i) !== stage(i - 1) ? 'span.first' : 'span', null,
            stage(i) >= 0 && [make('small', null, 'stage ' + stage(i) + ' \u00b7'), ' '], 'device ' + device)));
}

function timelineFrame(id, doc, stages) {
    const n = doc.lanes.length, height = n * HEIGHT;
    const buttons = [['out', '\u2212', 'zoom out'], ['in', '+', 'zoom in'], ['all', 'all', 'show all']];
    const label = 'timeline of ' + n + ' devices: arrow keys go from mark to mark, plus and minus zoom';
    const frame = { viewBox: '0 0 1000 ' + height, preserveAspectRatio: 'none', 'shape-rendering': 'crispEdges', 'aria-hidden': 'true' };
    const svg = drawing('svg', { ...frame, style: 'height:' + height + 'px' },
        doc.lanes.map((_, i) => drawing('g', { 'data-lane': i },
            drawing('rect', { class: 'none', y: i * HEIGHT + 2, width: 1000, height: HEIGHT - 4 }))),
        drawing('rect', { class: 'here', width: 0, height: 0 }));
    const box = make('div.timeline', { id, tabindex: '0', role: 'group', 'aria-label': label }, make('div.ticks'), svg);
    return {
        box,
        parts: [
            make('div.zoom', null, buttons.map(([way, text, words]) =>
                make('button', { type: 'button', 'data-zoom': id, 'data-way': way, 'aria-label': words }, text))),
            activityLegend(),
            make('div.lanes', null, laneNames(doc, stages), box),
            readout('Point at the timeline, tap it or use the arrow keys for details.'),
        ],
    };
}

// Makes the timeline. The returned parts must be added to the page before `start` is called.
function timeline(id, doc, stages) {
    const { box, parts } = timelineFrame(id, doc, stages);
    const svg = box.querySelector('svg'), ticks = box.querySelector('.ticks'), here = svg.querySelector('.here'), lanes = lanesOf(doc);
    let from = 0, to = doc.ticks, chosen = null, held = null;
    const seconds = t => t / doc.ticks * doc.seconds;

    function drawTicks() {
        const steps = box.clientWidth < 520 ? 2 : 5;
        ticks.textContent = '';
        for (let i = 0; i <= steps; i++) {
            const at = seconds(from + (to - from) * i / steps);
            add(ticks, make('span', { style: 'left:' + 100 * i / steps + '%' }, at ? time(at) : '0'));
        }
    }
    function outline() {
        const span = chosen && lanes[chosen.lane][chosen.at], x = t => (t - from) / (to - from) * 1000;
        if (!span || span.end < from || span.begin > to) {
            here.setAttribute('width', 0);
            return;
        }
        const a = Math.max(0, x(span.begin)), b = Math.min(1000, x(span.end));
        set(here, { x: a, y: chosen.lane * HEIGHT + 1, width: Math.max(b - a, 1), height: HEIGHT - 2 });
    }
    function draw() {
        for (const group of all('g[data-lane]', svg)) {
            const lane = +group.dataset.lane;
            all('path', group).forEach(path => path.remove());
            lanePaths(lanes[lane], from, to, lane * HEIGHT + 2).forEach((d, kind) => {
                if (d) group.append(drawing('path', { class: KINDS[kind], d }));
            });
        }
        drawTicks();
        outline();
    }
    function choose(lane, at) {
        const span = lanes[lane] && lanes[lane][at];
        if (!span) return;
        chosen = { lane, at };
        const kind = ACTIVITIES[span.kind], begin = seconds(span.begin);
        const what = span.op ? kind + ': ' + span.op + (span.node ? ' ' + span.node : '') : 'mostly ' + kind;
        const when = time(seconds(span.end - span.begin)) + ' from ' + (begin ? time(begin) : '0');
        show(box.parentNode, 'device ' + doc.devices[lane] + ', ' + what + ', ' + when);
        outline();
    }
    function move(start, width) {
        width = Math.max(doc.ticks / 5000, Math.min(doc.ticks, width));
        from = Math.max(0, Math.min(doc.ticks - width, start));
        to = from + width;
        draw();
    }
    function zoom(factor, around) {
        const width = (to - from) / factor, share = (around - from) / (to - from);
        move(around - width * share, width);
    }
    function follow() {
        const span = lanes[chosen.lane][chosen.at];
        if (span.begin < from || span.end > to) move((span.begin + span.end) / 2 - (to - from) / 2, to - from);
    }
    function pointAt(event) {
        const area = svg.getBoundingClientRect(), t = from + (event.clientX - area.left) / area.width * (to - from);
        const lane = Math.floor((event.clientY - area.top) / HEIGHT);
        if (lane < 0 || lane >= lanes.length) return;
        const k = firstAfter(lanes[lane], t);
        if (lanes[lane][k] && lanes[lane][k].begin <= t) choose(lane, k);
    }
    function onKey(event) {
        const key = event.key, lane = chosen ? chosen.lane : 0, k = chosen ? chosen.at : -1;
        if (key === 'ArrowRight') choose(lane, Math.min(lanes[lane].length - 1, k + 1));
        else if (key === 'ArrowLeft') choose(lane, Math.max(0, k - 1));
        else if (key === 'ArrowDown' || key === 'ArrowUp') {
            const next = Math.max(0, Math.min(lanes.length - 1, lane + (key === 'ArrowDown' ? 1 : -1)));
            choose(next, Math.min(lanes[next].length - 1, firstAfter(lanes[next], chosen ? lanes[lane][k].begin : from)));
        } else if (key === '+' || key === '=') zoom(2, chosen ? lanes[lane][k].begin : (from + to) / 2);
        else if (key === '-') zoom(0.5, (from + to) / 2);
        else return;
        event.preventDefault();
        if (chosen) follow();
    }
    box.addEventListener('pointerdown', event => {
        held = { x: event.clientX, from };
        pointAt(event);
    });
    box.addEventListener('pointermove', event => {
        if (!held) {
            pointAt(event);
            return;
        }
        const moved = (event.clientX - held.x) / svg.clientWidth * (to - from);
        if (Math.abs(event.clientX - held.x) > 4) move(held.from - moved, to - from);
    });
    for (const kind of ['pointerup', 'pointercancel', 'pointerleave']) box.addEventListener(kind, () => { held = null; });
    box.addEventListener('keydown', onKey);
    for (const button of parts[0].children) {
        button.addEventListener('click', () => {
            if (button.dataset.way === 'all') move(0, doc.ticks);
            else zoom(button.dataset.way === 'in' ? 2 : 0.5, (from + to) / 2);
        });
    }
    addEventListener('resize', drawTicks);
    return { parts, start: draw };
}

// Makes the section of the timelines, predicted and measured, each on its own scale. Calls in `later` need the finished page.
function timelines(report, later) {
    const { predicted, measured } = report, stages = report.simulation && report.simulation.stages;
    const drawn = (id, doc) => {
        const staged = report.simulation && doc.device_count === report.simulation.timeline.length;
        const { parts, start } = timeline(id, doc, staged ? stages : null);
        later.push(start);
        return [
            ...parts,
            doc.merged && lead('Too many events to show each one: a device\'s main activity in each interval is shown.'),
            firstOf(doc.devices.length, doc.device_count, 'devices'),
        ];
    };
    const left = report.measured_left_out > 0 && lead(report.measured_left_out + ' more events are in the trace and not shown.');
    if (!predicted) return section('timeline', 'Timeline, measured', null, drawn('measured', measured), left);
    return section('timeline', 'Timeline', 'Predicted. Devices synchronize only where they communicate.', drawn('lanes', predicted),
        measured && [make('h3', null, 'Measured'), ...drawn('measured', measured), left]);
}
