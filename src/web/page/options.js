// SPDX-License-Identifier: Apache-2.0
// options.js - the form of the page: machine, sizes and options of a plan.

export const MACHINES = [
    ['2', '2 assumed CPUs'], ['4', '4 assumed CPUs'], ['ring:4', 'ring of 4 CPUs'], ['torus:2x2x2', 'torus of 2 \u00d7 2 \u00d7 2 CPUs'],
    ['hosts:2x4', '2 hosts of 4 CPUs'], ['4090:2', '2 RTX 4090'], ['l40s:4', '4 L40S'], ['a100:8', '8 A100'], ['h100:4', '4 H100'],
    ['h100:8', '8 H100'], ['h200:8', '8 H200'], ['b200:8', '8 B200'], ['mi300x:8', '8 MI300X'], ['hosts:2xh100:8', '2 hosts of 8 H100'],
    ['', 'another: a topology or an instance map'],
];

function machine() {
    return byId('machine').value || byId('other').value.trim();
}

function chooseMachine(name) {
    const known = MACHINES.some(([value]) => value === name && value);
    byId('machine').value = known ? name : '';
    byId('other').hidden = known;
    if (!known) byId('other').value = name;
}

export const OPTIONS = { limit: '--memory', stages: '--stages', objective: '--objective' }; // by field

// Returns what the form says: { machine, sizes, limit, stages, objective }.
export function given() {
    const sizes = all('#dims input').filter(input => input.value !== '').map(input => [input.dataset.dim, input.value]);
    const others = Object.keys(OPTIONS).map(id => [id, byId(id).value.trim()]);
    return { machine: machine(), sizes: Object.fromEntries(sizes), ...Object.fromEntries(others) };
}

// Fills in the form.
export function fill(options) {
    chooseMachine(options.machine);
    for (const id of Object.keys(OPTIONS)) byId(id).value = options[id] || '';
    for (const input of all('#dims input')) input.value = options.sizes[input.dataset.dim] || '';
}

export function sizeOptions({ sizes }) {
    return Object.entries(sizes).flatMap(([name, size]) => ['--dim', name + '=' + size]);
}

export function planOptions(options) {
    return Object.entries(OPTIONS).flatMap(([id, name]) => options[id] ? [name, options[id]] : []);
}

// Returns a word of a command as a shell reads it.
export function shellWord(word) {
    return /^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'";
}

// Makes a field for each size of the inputs that is open, as `--dim` names it.
export function drawSizes(inputs, sizes) {
    const open = new Map();
    for (const input of inputs)
        (input.shape || []).forEach((size, axis) => {
            if (typeof size === 'string') open.set(size, size);
            else if (size === null) open.set(input.name + '.' + axis, input.name + '.' + axis);
        });
    const place = byId('dims');
    place.textContent = '';
    for (const name of open.keys()) {
        const field = make('input', { type: 'number', min: '1', placeholder: '128', 'data-dim': name });
        if (sizes[name]) field.value = sizes[name];
        add(place, make('label', null, name + ' ', field));
    }
    byId('sizes').hidden = open.size === 0;
}
