// SPDX-License-Identifier: Apache-2.0
// app.js - the page in the browser: opens a model, runs commands of Tessera on it in a worker, and draws their documents with the scripts
// of `tessera report`.
//
// A version is the model with some shardings: as it was opened, planned, or edited. Its files are what the next command reads, and its
// options are those of the form when it was made. The fragment of the address holds what is needed to come back to the version that is
// shown: model of the examples, options, whether it was planned, and edits.
import { tool, Cancelled, saved } from './tool.js';
import { MACHINES, OPTIONS, drawSizes, fill, given, planOptions, shellWord, sizeOptions } from './options.js';

const EXAMPLES = await (await fetch('examples.json')).json();
const BY_HAND = 'by-hand'; // name of a configuration that no plan made

let model = null; // what is open: { name, example, source, info, versions, shown }
let busy = null; // what is being done
const work = byId('work'); // plans and edits, below the verdict

// ---- running commands --------------------------------------------------------------------------

// What a command refused, in its own words.
class Refused extends Error {}

// Runs a command on files. Returns its document and the files it wrote. Exit code 1 of `check` says that it found something.
async function run(args, files, accepted) {
    const result = await tool.run([...args, '--json'], files, line => { if (busy) status(busy + ' ' + line); });
    if (result.code !== 0 && result.code !== accepted)
        throw new Refused(result.stderr.trim() || 'the command ended with code ' + result.code);
    return { document: JSON.parse(result.stdout), files: result.files };
}

function status(words) {
    byId('status').textContent = clean(words);
}

function refuse(words) {
    const box = byId('error');
    box.hidden = !words;
    box.textContent = '';
    if (words) add(box, make('pre', null, words.split('\n').flatMap((line, i) => [i > 0 && make('br'), line])));
}

function buttons() {
    for (const id of ['go', 'hand']) byId(id).disabled = !model || busy !== null;
    for (const button of all('#work button, #history button')) button.disabled = busy !== null;
    byId('cancel').hidden = busy === null;
}

// Does one thing at a time, says what, and shows why it failed. A version that was there before stays.
async function doing(words, action) {
    if (busy !== null) return false;
    const began = performance.now();
    busy = words;
    refuse('');
    status(words + ' \u2026');
    buttons();
    const clock = setInterval(() => status(busy + ' \u2026 ' + ((performance.now() - began) / 1e3).toFixed(0) + ' s'), 1000);
    try {
        await action();
        status('');
        return true;
    } catch (error) {
        status(error instanceof Cancelled ? 'Cancelled.' : '');
        if (!(error instanceof Cancelled)) refuse(error instanceof Refused ? error.message : 'This page failed: ' + error.message);
        return false;
    } finally {
        clearInterval(clock);
        busy = null;
        buttons();
    }
}

// ---- the model ---------------------------------------------------------------------------------

function fact(name, ...words) {
    return make('tr', null, make('td', null, name), make('td.name', null, ...words));
}

function valueWords(values) {
    const shape = sizes => ' [' + sizes.map(n => n === null ? '?' : n).join(', ') + ']';
    return values.flatMap((value, i) => [i > 0 && make('br'), value.name + ' ',
        make('code', null, value.type + (value.shape ? shape(value.shape) : ''))]);
}

const OPERATORS = 12; // more kinds are counted

function about(findings) {
    const { info, name } = model, kinds = Object.entries(info.operators), shown = kinds.slice(0, OPERATORS);
    const operators = shown.map(([op, n]) => op + ' \u00d7\u202f' + n).join(', ') +
        (kinds.length > shown.length ? ', ' + plural(kinds.length - shown.length, 'other kind') : '');
    const configurations = info.configurations.map(c => c.name + ' (' + plural(c.devices, 'device') + ')').join(', ');
    const found = findings.length ? plural(findings.length, 'finding') : 'no findings';
    const place = byId('about');
    place.textContent = '';
    add(place, make('details.card', model.shown && !errorsOf(findings) ? null : { open: '' },
        make('summary', null, name + ': ' + plural(info.nodes, 'node') + ', ' + bytes(info.weight_bytes) + ' of weights, ' + found),
        make('div.scroll', { tabindex: '0' }, make('table', { id: 'facts' }, make('tbody', null,
            fact('operators', operators),
            fact('weights', info.initializers + ', ' + bytes(info.weight_bytes)),
            fact('inputs', valueWords(info.inputs)),
            fact('outputs', valueWords(info.outputs)),
            fact('configurations', configurations || 'none: the model is not annotated')))),
        make('h2', null, 'Check'),
        findings.length ? findingsTable('model-findings', findings) : make('p', null, 'No findings: the annotations are valid.')));
}

// Reads a model: its facts and findings. An annotated one is shown at once.
async function open(name, blob, example, sizes) {
    const source = await tool.open(blob), first = { label: 'as opened', files: { [name]: source.bytes }, edits: [] };
    await examine(name, first);
    const { info } = first;
    model = { name, example, source, info, versions: [first], shown: null };
    byId('example').value = example || '';
    byId('opened').textContent = clean(name + ', ' + bytes(blob.size));
    byId('report').textContent = '';
    byId('report').before(work);
    work.hidden = true;
    drawSizes(info.inputs, sizes);
    about(first.found);
    keepAddress();
    if (info.configurations.length) await present(first);
}

// ---- versions ----------------------------------------------------------------------------------

// Returns what concerns a configuration, of what `check` found.
function concerning(findings, config) {
    return findings.filter(f => f.configuration === null || f.configuration === config);
}

function errorsOf(findings) {
    return findings.filter(f => f.severity === 'error').length;
}

// Fills in what `info` and `check` say about a version.
async function examine(name, version) {
    const { document: info } = await run(['info', name], version.files);
    const { document: check } = await run(['check', name], version.files, 1);
    Object.assign(version, { info, found: check.findings });
}

// Examines and predicts a version and shows it. Of several configurations it is the last, which the latest edit concerns. A version with
// errors has no prediction; the list of findings says where they are.
async function present(version) {
    if (!version.info) await examine(model.name, version);
    if (!version.config) version.config = version.info.configurations[version.info.configurations.length - 1].name;
    version.findings = concerning(version.found, version.config);
    version.options = version.options || given();
    if (!version.report && !errorsOf(version.findings)) {
        const words = [model.name, '--config', version.config, ...sizeOptions(version.options)];
        const { document: report } = await run(['report', ...words], version.files);
        report.findings = version.findings;
        report.change = changeNode;
        version.ranks = await ranks(words, version.files);
        report.command = version.command || command(words);
        if (version.plan && report.plan) report.plan.compared = version.plan.compared;
        version.report = report;
    }
    if (!model.versions.includes(version)) model.versions.push(version);
    model.shown = version;
    drawVersion(version);
    keepAddress();
}

// Returns the command that makes the page of `tessera report`.
function command(words) {
    return ['tessera', 'report', ...words, '-o', 'page.html'].map(shellWord).join(' ');
}

function drawVersion(version) {
    const place = byId('report');
    place.before(work);
    place.textContent = '';
    drawWork(version);
    if (version.report) {
        draw(version.report, place);
        add(byId('communication'), rankTable(version.ranks));
        place.querySelector('nav').before(work);
    }
    about(version.findings);
}

// Returns what `partition` would write for each rank; null with an error where the model cannot be partitioned.
async function ranks(words, files) {
    try {
        const { document } = await run(['partition', ...words, '--dry-run'], files);
        return document;
    } catch (error) {
        if (error instanceof Refused) return { error: error.message };
        throw error;
    }
}

function rankTable(partition) {
    const head = make('h3', null, 'Files of the ranks');
    if (partition.error) return [head, lead('The model cannot be partitioned:'), make('pre', null, partition.error)];
    const calls = Object.entries(partition.collectives).map(([op, count]) => count + ' ' + op).join(', ');
    return [
        head,
        lead('What tessera partition writes: one ONNX file per rank, with ' + (calls || 'no communication') + ' between them' +
            (partition.common_bytes ? ', and ' + bytes(partition.common_bytes) + ' of weights that ranks share' : '') + '.'),
        table('ranks', [
            column('rank', rank => rank, 'n'),
            column('weights in memory', rank => bytes(partition.weight_bytes[rank]), 'n'),
            column('files', rank => bytes(partition.file_bytes[rank]), 'n'),
        ], partition.weight_bytes.map((_, rank) => rank)),
    ];
}

function planName() {
    return model.name.replace(/\.onnx$/, '') + '.plan.json';
}

async function plan() {
    const options = given(), words = ['--devices', options.machine, ...planOptions(options), ...sizeOptions(options)];
    const out = ['-o', 'out/' + model.name, '--plan', 'out/' + planName()];
    const { document, files } = await run(['plan', model.name, ...words, ...out], model.versions[0].files);
    if (!document.feasible) throw new Refused('no plan fits in the memory of these devices');
    const { [planName()]: written, ...others } = files;
    await present({
        label: 'plan for ' + options.machine, files: others, plan: document, written, config: document.configuration, options, edits: [],
        begun: 'plan', command: command([model.name, ...words]),
    });
}

// Declares a configuration for the machine without sharding anything.
async function byHand() {
    const options = given(), { document: topology } = await run(['topology', 'show', options.machine], {});
    const taken = model.versions[0].info.configurations.map(config => config.name);
    let config = BY_HAND;
    for (let i = 2; taken.includes(config); i++) config = BY_HAND + '-' + i;
    const edits = ['--config', config + ':' + topology.devices.length, '--topology', options.machine];
    const { files } = await run(['annotate', model.name, ...edits, '-o', 'out/' + model.name], model.versions[0].files);
    await present({ label: 'by hand on ' + options.machine, files, config, options, edits: [], begun: 'hand' });
}

// Names a tensor of a node for `annotate`, which takes all between the quotes as it is.
function target(index, value) {
    return `"#${index}":"${value}"`;
}

// Changes one sharding of a version, infers what is missing and predicts the result.
async function edit(version, words) {
    const name = model.name, { files: edited } = await run(
        ['annotate', name, '--config', version.config, ...words, '-o', 'out/' + name], version.files);
    const next = {
        label: words.join(' '), files: { ...version.files, ...edited }, config: version.config, options: version.options,
        begun: version.begun, edits: [...version.edits, words],
    };
    await examine(name, next);
    if (!errorsOf(concerning(next.found, next.config))) {
        const { files } = await run(['infer', name, '--config', next.config, '-o', 'out/' + name], next.files);
        Object.assign(next, { files: { ...next.files, ...files }, info: null });
    }
    await present(next);
}

function download(name, blob) {
    const link = make('a', { href: URL.createObjectURL(blob), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function downloadModel(version) {
    download(model.name, saved(model.source, version.files[model.name]));
}

// Saves what `tessera annotate --script` reads: the document of a plan, else a script of edits. A plan of a model whose weights were not
// read does not have the digest of its file.
function downloadPlan(version) {
    if (version.written) {
        const text = new TextDecoder().decode(version.written);
        download(planName(), new Blob([model.source.left.length ? text.replace(/("sha256": )"\w*"/, '$1null') : text]));
        return;
    }
    const { configurations, shardings } = version.info, { devices } = configurations.find(c => c.name === version.config);
    const script = [`--config ${version.config}:${devices}`, ...shardings.filter(s => s.configuration === version.config)
        .map(s => `--shard ${target(s.index, s.value)}=${s.sharding}`)];
    download(planName().replace(/json$/, 'txt'), new Blob([script.join('\n') + '\n']));
}

// ---- the card of versions and edits ------------------------------------------------------------

function history() {
    const rows = model.versions.filter(version => version.findings);
    return table('history', [
        column('shardings', version => version.label, 'name'),
        column('predicted', version => version.report ? time(version.report.simulation.first_s) : '\u2013', 'n'),
        column('memory of the fullest device', version => version.report ? bytes(version.report.verdict.memory) : '\u2013', 'n'),
        column('errors', version => errorsOf(version.findings) || '', 'n'),
        column('shown', version => version === model.shown ? 'yes' : showButton(version)),
    ], rows);
}

function showButton(version) {
    const button = make('button', { type: 'button' }, 'Show');
    button.addEventListener('click', () => doing('Reading', () => {
        if (version.options) fill(version.options);
        return present(version);
    }));
    return button;
}

function drawWork(version) {
    work.hidden = false;
    work.textContent = '';
    const annotated = make('button', { type: 'button' }, 'Download the annotated model');
    const planned = make('button', { type: 'button' }, 'Download the plan');
    annotated.addEventListener('click', () => downloadModel(version));
    planned.addEventListener('click', () => downloadPlan(version));
    add(work, section('versions', 'Plans and edits', null, history(), editForm(version),
        make('div.row actions', null, annotated, planned)));
}

// Fills the form with a node of the list of shardings.
function changeNode(index) {
    const node = byId('node'), { name, op } = model.source.nodes[index];
    node.value = name && model.source.nodes.findIndex(n => n.name === name) === index ? name : '#' + index + ' ' + op;
    node.dispatchEvent(new Event('input'));
    const value = byId('value'), output = model.source.nodes[index].outputs.find(Boolean);
    if (output) value.value = output;
    value.dispatchEvent(new Event('change'));
    byId('edit').scrollIntoView({ block: 'center' });
    byId('spec').focus({ preventScroll: true });
}

const OFFERED = 100; // nodes that the list of names offers

// Makes the form that changes one sharding.
function editForm(version) {
    const typed = { type: 'text', spellcheck: 'false', autocomplete: 'off' };
    const node = make('input', { ...typed, id: 'node', list: 'names', placeholder: 'name or #index' });
    const names = make('datalist', { id: 'names' });
    const value = make('select', { id: 'value' });
    const spec = make('input', { ...typed, id: 'spec', placeholder: '{2,1:0,1}' });
    const apply = make('button', { type: 'submit' }, 'Apply'), drop = make('button', { type: 'button' }, 'Remove');
    const { nodes } = model.source, found = () => nodes.findIndex((n, i) => n.name === node.value || '#' + i === node.value.split(' ')[0]);
    const current = () => {
        const index = found();
        const known = version.info.shardings.find(s => s.configuration === version.config && s.index === index && s.value === value.value);
        spec.value = known ? known.sharding : '';
    };
    node.addEventListener('input', () => {
        const wanted = node.value.toLowerCase(), offers = [];
        for (let i = 0; i < nodes.length && offers.length < OFFERED; i++) {
            const words = nodes[i].name || '#' + i + ' ' + nodes[i].op;
            if (words.toLowerCase().includes(wanted)) offers.push(make('option', { value: words }, nodes[i].op));
        }
        names.textContent = '';
        add(names, offers);
        const at = nodes[found()];
        value.textContent = '';
        if (at) add(value, [...new Set([...at.inputs, ...at.outputs])].filter(Boolean).map(name => make('option', { value: name }, name)));
        current();
    });
    value.addEventListener('change', current);
    const place = () => target(found(), value.value);
    const ready = () => {
        if (nodes[found()] && value.value) return true;
        refuse(node.value ? 'there is no node "' + node.value + '"' : 'choose a node first');
        return false;
    };
    drop.addEventListener('click', () => ready() && doing('Removing', () => edit(version, ['--unshard', place()])));
    const form = make('form', { id: 'edit' },
        make('h3', null, 'Change a sharding'),
        lead('Numbers of shards per dimension, then the device of each: {2,1:0,1} shards dimension 0 in two, {1:0,1} copies to both. ' +
            'Missing shardings are inferred; conversions are added where two nodes disagree.'),
        make('div.field two-fields', null,
            make('label', null, 'node', node), make('label', null, 'tensor', value), make('label', null, 'sharding', spec)),
        names, make('div.row actions', null, apply, drop));
    form.addEventListener('submit', event => {
        event.preventDefault();
        if (ready()) doing('Changing', () => edit(version, ['--shard', place() + '=' + spec.value.trim()]));
    });
    return form;
}

// ---- the address -------------------------------------------------------------------------------

// Writes the state into the fragment of the address: of the version that is shown, else of the form.
function keepAddress() {
    const state = new URLSearchParams(), version = model && model.shown, options = version ? version.options : given();
    if (model && model.example) state.set('model', model.example);
    state.set('machine', options.machine);
    for (const size of Object.entries(options.sizes)) state.append('dim', size.join('='));
    for (const id of Object.keys(OPTIONS)) if (options[id]) state.set(id, options[id]);
    if (version && version.begun) state.set('do', version.begun);
    for (const words of version ? version.edits : []) state.append('edit', words.join(' '));
    window.history.replaceState(null, '', '#' + state);
}

function splitEdit(words) {
    const at = words.indexOf(' ');
    return [words.slice(0, at), words.slice(at + 1)];
}

async function openExample(id, sizes) {
    const example = EXAMPLES.find(one => one.id === id);
    if (!example) throw new Refused('there is no example "' + id + '"');
    const answer = await fetch('examples/' + example.file);
    if (!answer.ok) throw new Refused('the example was not found: ' + answer.status);
    await open(example.file, await answer.blob(), id, { ...example.dims, ...sizes });
}

// Goes back to the state that the address holds.
async function fromAddress() {
    const state = new URLSearchParams(location.hash.slice(1));
    fill({ ...Object.fromEntries(state), machine: state.get('machine') || '4', sizes: {} });
    if (!state.get('model')) return;
    await openExample(state.get('model'), Object.fromEntries(state.getAll('dim').map(size => size.split(/=(?=[^=]*$)/))));
    if (state.get('do') === 'plan') await plan();
    if (state.get('do') === 'hand') await byHand();
    for (const words of state.getAll('edit')) if (model.shown) await edit(model.shown, splitEdit(words));
}

// ---- events ------------------------------------------------------------------------------------

// Opens a model that a visitor chose, and prepares for the first plan while the visitor looks at it.
async function choose(words, action) {
    const done = await doing(words, action);
    if (!done) byId('example').value = model && model.example || '';
    if (done) tool.warmUp({ name: model.name, files: model.versions[0].files, nodes: model.info.nodes });
}

// Opens a file of this computer. Commands read its name as an option if it begins with "-", and "out" is their folder.
function openFile(file) {
    const name = file && (/^-|^out$/.test(file.name) ? '_' + file.name : file.name);
    if (file) choose('Reading ' + name, () => open(name, file, null, {}));
}

add(byId('example'), make('option', { value: '' }, 'choose an example'),
    EXAMPLES.map(one => make('option', { value: one.id }, one.title)));
add(byId('machine'), MACHINES.map(([value, words]) => make('option', { value }, words)));
byId('example').addEventListener('change', event => event.target.value && choose('Reading', () => openExample(event.target.value, {})));
byId('machine').addEventListener('change', () => { byId('other').hidden = byId('machine').value !== ''; });
byId('open').addEventListener('click', () => byId('file').click());
byId('file').addEventListener('change', event => {
    openFile(event.target.files[0]);
    event.target.value = ''; // the same file may be chosen again
});
byId('start').addEventListener('submit', event => {
    event.preventDefault();
    if (model) doing('Planning', plan);
});
byId('start').addEventListener('change', () => model && model.shown || keepAddress());
byId('hand').addEventListener('click', () => doing('Preparing', byHand));
byId('cancel').addEventListener('click', () => tool.cancel());
addEventListener('dragover', event => {
    event.preventDefault();
    document.body.classList.add('dropping');
});
addEventListener('dragleave', event => event.relatedTarget || document.body.classList.remove('dropping'));
addEventListener('drop', event => {
    event.preventDefault();
    document.body.classList.remove('dropping');
    openFile([...event.dataTransfer.files].find(file => !/\.(data|bin|weight|npy)$/.test(file.name)) || event.dataTransfer.files[0]);
});
addEventListener('hashchange', () => doing('Reading', fromAddress));
doing('Reading', fromAddress);
