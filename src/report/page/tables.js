// SPDX-License-Identifier: Apache-2.0
// tables.js - tables, whose rows are drawn when they are needed: of a model with 100,000 nodes the first BATCH, more as the reader scrolls.
'use strict';

const BATCH = 200;

// A column: heading, function of a row that returns its parts, class of the cells.
function column(head, parts, kind) {
    return { head, parts, kind };
}

function tableRow(columns, row) {
    return make('tr', null, columns.map(c => make('td' + (c.kind ? '.' + c.kind : ''), { 'data-column': c.head }, c.parts(row))));
}

// Makes a table that is drawn at once. With `stack`, cells are below each other on a narrow screen.
function plainTable(id, columns, rows, stack) {
    return make('table' + (stack ? '.stack' : ''), { id },
        make('thead', null, make('tr', null, columns.map(c => make('th' + (c.kind === 'n' ? '.n' : ''), null, c.head)))),
        make('tbody', null, rows.map(row => tableRow(columns, row))));
}

// Makes a table in an area that scrolls. The returned element has a function `choose` that shows the rows for which `wanted` is true.
function table(id, columns, rows) {
    const made = plainTable(id, columns, [], true), body = made.tBodies[0];
    const area = make('div.scroll', { tabindex: '0' }, made);
    let chosen = rows, drawn = 0;
    function more() {
        add(body, chosen.slice(drawn, drawn + BATCH).map(row => tableRow(columns, row)));
        drawn = Math.min(chosen.length, drawn + BATCH);
    }
    area.addEventListener('scroll', () => {
        if (drawn < chosen.length && area.scrollTop + 2 * area.clientHeight > area.scrollHeight) more();
    });
    addEventListener('beforeprint', () => {
        while (drawn < chosen.length) more();
    });
    area.choose = wanted => {
        chosen = rows.filter(wanted);
        drawn = 0;
        body.textContent = '';
        more();
    };
    more();
    return area;
}

function firstOf(shown, everything, what) {
    return shown < everything && lead('The first ' + shown + ' of ' + everything + ' ' + what + '.');
}

// ---- shardings ---------------------------------------------------------------------------------

// Makes a list of shardings: a line for each tensor.
function specs(list) {
    return list.map((spec, i) => [i > 0 && make('br'), spec.value, ' ', make('code', null, spec.sharding)]).flat();
}

// Returns the names of all nodes of a row, from their common texts and their numbers.
function memberNames(row) {
    const { texts, numbers } = row.members, step = texts.length - 1;
    return row.indices.map((_, i) => texts.map((text, k) => text + (k < step ? numbers[i * step + k] : '')).join(''));
}

// Makes the mark that lists the nodes of a row when it is opened.
function members(row) {
    if (!row.members) return null;
    const list = make('span'), details = make('details', null, make('summary', null, '\u00d7\u202f' + row.count), list);
    details.addEventListener('toggle', () => {
        if (!details.open || list.firstChild) return;
        add(list, memberNames(row).map((name, i) => [i > 0 && make('br'), row.indices[i] + ' ' + name]));
    });
    return details;
}

// Returns the text of a row that the filter searches.
function searched(row) {
    if (!row.text) {
        const tensors = [...row.inputs, ...row.outputs].map(spec => spec.value + ' ' + spec.sharding);
        row.text = [row.index, row.name, row.op, ...tensors, ...(row.members ? memberNames(row) : [])].join('\n').toLowerCase();
    }
    return row.text;
}

// Makes the button that starts to change the shardings of a node, where the page can do that.
function changeButton(row, change) {
    const button = make('button', { type: 'button', 'aria-label': 'change ' + clean(row.name || row.op) }, 'Change');
    button.addEventListener('click', () => change(row.index));
    return button;
}

function shardings(report) {
    const { rows, left_out: more } = report.shardings;
    const columns = [
        column('#', row => row.index, 'n'),
        column('node', row => [row.name, members(row)], 'name'),
        column('operator', row => row.op),
        column('stage', row => row.stage, 'n'),
        column('inputs', row => specs(row.inputs), 'name'),
        column('outputs', row => specs(row.outputs), 'name'),
    ];
    if (report.change) columns.push(column('change', row => changeButton(row, report.change)));
    const area = table('nodes', columns, rows);
    const filter = make('input', {
        type: 'search', placeholder: 'filter by name, operator or sharding', 'aria-label': 'filter', 'data-filter': 'nodes',
    });
    filter.addEventListener('input', () => {
        const wanted = filter.value.toLowerCase();
        area.choose(row => !wanted || searched(row).includes(wanted));
    });
    return section('shardings', 'Shardings',
        'Inputs and outputs of each node. {1,4:0,1,2,3} splits the columns in four, one part on each of the devices 0 to 3; ' +
        '{1,1:0,1} is a copy on each of the devices 0 and 1. Nodes without a sharding are replicated. Identical layers are grouped.',
        filter, area, firstOf(rows.length, rows.length + more, 'rows'));
}

// ---- other tables ------------------------------------------------------------------------------

function operators(report) {
    const rows = report.operators, sum = rows.reduce((all, row) => all + row.seconds, 0);
    const kinds = { computing: ACTIVITIES[0], communicating: ACTIVITIES[1], waiting: ACTIVITIES[2] };
    const columns = [
        column('operator', row => row.op, 'name'),
        column('kind', row => kinds[row.kind]),
        column('calls', row => row.calls, 'n'),
        column('predicted time', row => time(row.seconds), 'n'),
        column('share', row => percent(sum > 0 ? row.seconds / sum : 0), 'n'),
    ];
    if (report.measured) columns.push(column('measured time', row => time(row.measured_s), 'n'));
    return [make('h3', null, 'By operator, sum over all devices'), table('operators', columns, rows)];
}

function groupWords(row) {
    const groups = row.groups.map(group => group.devices.join(' ') + (group.size > group.devices.length ? ' \u2026' : ''));
    const more = row.group_count - row.groups.length;
    return groups.join(' | ') + (more > 0 ? ' and ' + more + ' more' : '');
}

function communicationTable(report) {
    const { rows, left_out: more } = report.communication, n = report.communications;
    if (!n) return make('p', null, 'None: the devices do not communicate.');
    const planned = Object.entries((report.plan && report.plan.collectives) || {});
    const counts = planned.map(([op, count]) => count + ' ' + op).join(', ');
    return [
        lead(plural(n, 'communication') + ' in one run' + (counts && ': ' + counts) + '. ',
            bytes(report.link_bytes) + ' over links in total.'),
        table('comms', [
            column('operator', row => [row.op, times(row)]),
            column('tensor', row => row.name, 'name'),
            column('size', row => bytes(row.bytes), 'n'),
            column('sent over links', row => bytes(row.carried), 'n'),
            column('time', row => time(row.seconds), 'n'),
            column('devices', groupWords, 'devices'),
        ], rows),
        more > 0 && lead('The ' + rows.length + ' with the longest time, of ' + (rows.length + more) + '.'),
    ];
}

// Makes the table of what `check` found.
function findingsTable(id, list) {
    return table(id, [
        column('severity', f => make('span.' + f.severity, null, f.severity), 'sev'),
        column('code', f => make('code', null, f.code)),
        column('where', f => [f.node || '', f.node && f.value ? ': ' : '', f.value || ''], 'name'),
        column('message', f => [f.message, f.hint && make('br'), f.hint], 'name'),
    ], list);
}

function findings(report) {
    const list = report.findings.length ? findingsTable('found', report.findings) : make('p', null, 'None.');
    return section('findings', 'Diagnostics', null, list);
}

// ---- comparison with another plan --------------------------------------------------------------

const ALIKE = 0.005; // smaller relative differences are none
// Words, key, text, and what is better: -1 the smaller, 1 the larger, 0 neither.
const FIGURES = [
    ['devices', 'devices', String, 0],
    ['predicted time of one run', 'first_s', time, -1],
    ['speedup over one device', 'faster', three, 1],
    ['memory of the fullest device', 'memory', bytes, -1],
    ['time communicating', 'communication', percent, -1],
    ['time waiting', 'waiting', percent, -1],
    ['communications', 'communications', String, -1],
    ['bytes sent over links', 'link_bytes', bytes, -1],
];

// Returns which of two values is better: 0, 1, or -1 for neither.
function better(values, direction) {
    const [a, b] = values;
    if (!direction || Math.abs(a - b) <= ALIKE * Math.max(Math.abs(a), Math.abs(b))) return -1;
    return (a < b) === (direction < 0) ? 0 : 1;
}

function figureRow([words, key, text, direction], sides) {
    const values = sides.map(side => side[key]), best = better(values, direction);
    return make('tr', null, make('td', null, words), values.map((value, i) => make(i === best ? 'td.n best' : 'td.n', null, text(value))));
}

function comparison(report) {
    const both = report.comparison, list = both.differences;
    const specsOf = side => side.inputs.length + side.outputs.length ? specs([...side.inputs, ...side.outputs]) : 'replicated';
    const figures = make('table', { id: 'sides' },
        make('thead', null, make('tr', null, make('th'), make('th.n', null, 'this plan'), make('th.n', null, both.title))),
        make('tbody', null, FIGURES.map(figure => figureRow(figure, [both.this, both.other]))));
    return section('beside', 'Comparison of two plans', null,
        make('div.scroll', { tabindex: '0' }, figures),
        both.differing_nodes ? [
            make('h3', null, 'Nodes with different shardings'),
            table('differences', [
                column('node', row => row.name, 'name'),
                column('this plan', row => specsOf(row.this), 'name'),
                column('other plan', row => specsOf(row.other), 'name'),
            ], list),
            lead(both.differing_nodes + ' nodes differ; identical layers are grouped.'),
        ] : lead('Both plans shard every node the same way.'));
}
