// SPDX-License-Identifier: Apache-2.0
// sections.js - the page from top to bottom: the result first, then the reasons. Sections without content are left out, and so are their
// links.
'use strict';

function header(report) {
    const sharded = report.configuration === null ? 'The model has no device configuration' :
        'Sharded over ' + plural(report.devices, 'device') + ', configuration ' + report.configuration;
    const sizes = report.sizes.map(({ name, size }) => ', ' + name + '\u202f=\u202f' + size).join('');
    return make('header', null, make('h1', null, report.model), lead(sharded + sizes + '.'));
}

// Makes the summary: a measured run first, then the sentences.
function summary({ verdict, simulation }) {
    const { measured_s: measured, measured_runs: runs } = verdict, predicted = simulation.first_s;
    const agrees = measured <= predicted * AGREE && measured >= predicted / AGREE;
    const fit = verdict.fits === null ? 'open' : !verdict.fits ? 'bad' : verdict.narrow ? 'near' : 'good';
    const n = simulation.timeline.length;
    const assumed = [
        'Predicted for ' + n + ' assumed device' + (n === 1 ? '' : 's') + ' of ' + three(simulation.device_flops / 1e9) + ' GFLOP/s; ',
        make('code', null, 'tessera topology measure'), ' measures your own. ',
    ];
    return [
        measured > 0 && predicted > 0 && make(agrees ? 'p.headline agrees' : 'p.headline parts', null,
            measuredWords(measured, predicted) + '.',
            make('span', null, runs > 1 ? ' Median of ' + runs + ' runs.' : ' One run.')),
        make('p.verdict ' + fit, null, fitWords(verdict) + speedWords(verdict, simulation) + '.'),
        make('p.why', null, verdict.assumed && assumed, boundWords(verdict, simulation)),
    ];
}

// Returns number and label of each tile.
function tileTexts({ verdict, simulation, plan, nodes }) {
    const list = [];
    if (simulation) {
        list.push([time(simulation.first_s), 'predicted time of one run']);
        if (simulation.requests > 1) list.push([time(simulation.period_s), 'predicted time between runs']);
        if (verdict.measured_s > 0) list.push([time(verdict.measured_s), 'measured time of one run']);
        if (verdict.one_device_s > 0 && simulation.timeline.length > 1)
            list.push([time(verdict.one_device_s), 'predicted on one device' + (verdict.one_device_fits ? '' : ' with enough memory')]);
        list.push([bytes(verdict.memory), (verdict.limit > 0 ? 'of ' + bytes(verdict.limit) + ' ' : '') + 'used on the fullest device']);
        list.push([percent(verdict.shares.communication), 'of the time communicating']);
    }
    if (plan && plan.nodes) list.push([plan.cut_nodes + ' of ' + plan.nodes, 'nodes are sharded']);
    else list.push([nodes, 'nodes in the model']);
    return list;
}

function tiles(report) {
    const tile = ([number, label]) => make('div.tile', null, make('b', null, number), make('span', null, label));
    return make('div.tiles', null, tileTexts(report).map(tile));
}

// Makes the command that made the page, with a copy button.
function command(report) {
    const code = make('code', { id: 'command' }, report.command);
    const button = make('button', { type: 'button', 'data-copy': 'command' }, 'Copy');
    button.addEventListener('click', () => {
        const range = document.createRange(), selection = getSelection();
        range.selectNodeContents(code);
        selection.removeAllRanges();
        selection.addRange(range);
        button.textContent = document.execCommand('copy') ? 'Copied' : 'Selected';
    });
    return section('repeat', 'Reproduce this page', null, make('pre', null, code), button);
}

// The sections in order: condition, words of the link (NULL: none), function. Calls in `later` need the finished page.
function sections(report, later) {
    const simulated = report.simulation;
    return [
        [report.comparison, 'Comparison', () => comparison(report)],
        [report.layers.rows.length, 'Plan', () => layers(report)],
        [simulated, 'Memory', () =>
            section('memory', 'Memory', 'Peak memory of each device and its limit.', memoryChart(report), largest(report))],
        [simulated, 'Time', () => section('time', 'Where time goes', null, timeChart(report), operators(report))],
        [report.predicted || report.measured, 'Timeline', () => timelines(report, later)],
        [simulated, 'Communication', () => section('communication', 'Communication', null, communicationTable(report), linkLoad(report))],
        [report.tensors, 'Tensors', () => tensors(report, later)],
        [true, 'Shardings', () => shardings(report)],
        [true, 'Diagnostics', () => findings(report)],
        [report.topology, 'Devices', () => devices(report)],
        [report.command, null, () => command(report)],
    ].filter(([wanted]) => wanted).map(([, words, draw]) => ({ words, element: draw() }));
}

// Draws the report into an element.
function draw(report, target) {
    const later = [], drawn = sections(report, later);
    const links = drawn.filter(({ words }) => words).map(({ words, element }) => make('a', { href: '#' + element.id }, words));
    target.textContent = '';
    add(target, header(report), report.simulation && report.simulation.timeline.length > 0 && summary(report), tiles(report),
        make('nav', { 'aria-label': 'sections' }, links), drawn.map(({ element }) => element),
        make('footer', null, 'Made by Tessera ' + report.release + '. This page loads nothing from the network.'));
    for (const call of later) call();
}
