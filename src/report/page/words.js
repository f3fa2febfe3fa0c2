// SPDX-License-Identifier: Apache-2.0
// words.js - numbers, names and sentences.
'use strict';

// Returns a number with at most three digits that count.
function three(value) {
    return String(+value.toPrecision(3));
}

function time(s) {
    if (!s) return '0 \u00b5s';
    if (s >= 1) return three(s) + ' s';
    if (s >= 1e-3) return three(s * 1e3) + ' ms';
    return three(s * 1e6) + ' \u00b5s';
}

// 512 is "512 B", 1536 is "1.5 KiB".
function bytes(n) {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
    let u = 0;
    for (; n >= 1024 && u + 1 < units.length; u++) n /= 1024;
    return (u && n < 100 ? n.toFixed(1) : Math.round(n)) + ' ' + units[u];
}

function percent(share, digits) {
    return (100 * share).toFixed(digits === undefined ? 1 : digits) + ' %';
}

function plural(n, noun) {
    return n + ' ' + noun + (n === 1 ? '' : 's');
}

// The kinds of activity on a timeline: class and words.
const KINDS = ['work', 'talk', 'wait'], ACTIVITIES = ['computing', 'communicating', 'waiting for other devices'];
function activityLegend() {
    return legend([...KINDS.map((kind, i) => [kind, ACTIVITIES[i]]), ['none', 'idle']]);
}

// Returns the number of names of a row as a mark behind its name.
function times(row) {
    return row.count > 1 && [' ', make('span.times', null, '\u00d7\u202f' + row.count)];
}

// ---- the summary -------------------------------------------------------------------------------

const AGREE = 1.25; // largest ratio of predicted and measured time that is accurate
const EQUAL = 1.05; // smaller speedups are none

function fitWords(verdict) {
    if (verdict.fits === null) return 'Memory limit unknown';
    if (!verdict.fits)
        return 'Does not fit: device ' + verdict.fullest + ' needs ' + bytes(verdict.memory) + ' but has ' + bytes(verdict.limit);
    return verdict.narrow ? 'Barely fits in memory' : 'Fits in memory';
}

function speedWords(verdict, simulation) {
    const devices = simulation.timeline.length;
    if (devices < 2 || verdict.faster <= 0) return '';
    let words = '; ' + three(1 / verdict.faster) + ' times slower than one device';
    if (verdict.faster >= EQUAL) words = ', ' + three(verdict.faster) + ' times as fast as one device';
    else if (verdict.faster > 1 / EQUAL) words = ', no faster than one device';
    if (!verdict.one_device_fits) words += ', which does not have enough memory';
    if (verdict.assumed) words += ', on ' + devices + ' assumed devices';
    return words + (simulation.requests > 1 ? ', for back-to-back runs' : '');
}

// Says what limits the speed and, unless that is waiting or overhead, the operator that takes most of that time.
function boundWords(verdict, simulation) {
    const share = percent(verdict.shares[verdict.bound.replace(' ', '_')], 0), communicates = verdict.bound === 'communication';
    if (verdict.bound === 'waiting') {
        const why = simulation.stages && simulation.requests === 1 ? ': a single request is in one stage at a time' : '';
        return 'Devices wait ' + share + ' of the time' + why + '.';
    }
    if (verdict.bound === 'overhead')
        return 'Overhead-bound (' + share + '): the engine needs a fixed time per node; ' +
            'larger batches or fewer nodes would use the devices better.';
    const kinds = { communication: 'Communication', 'memory bandwidth': 'Memory-bandwidth', arithmetic: 'Compute' };
    const operator = verdict.operator && ', mostly ' + (communicates ? verdict.operator_calls + ' \u00d7 ' : '') + verdict.operator;
    return kinds[verdict.bound] + '-bound (' + share + ')' + (operator || '') + '.';
}

// Compares the measured time with the predicted one.
function measuredWords(measured, predicted) {
    const ratio = measured / predicted, both = 'Measured ' + time(measured) + ', predicted ' + time(predicted);
    if (ratio <= AGREE && ratio >= 1 / AGREE) return both + ': the prediction is accurate';
    if (ratio > 1) return both + ': the run took ' + three(ratio) + ' times as long as predicted';
    return both + ': the run was ' + three(1 / ratio) + ' times as fast as predicted';
}
