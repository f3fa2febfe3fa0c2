// SPDX-License-Identifier: Apache-2.0
// dom.js - elements of the page. Names of the model are inserted as text, never as markup.
'use strict';

const SVG = 'http://www.w3.org/2000/svg';

// Returns a text as the page shows it: control characters become U+FFFD.
function clean(text) {
    return String(text).replace(/[\u0000-\u001f\u007f]/g, '\ufffd');
}

// Makes an element. Attributes are set as they are, except text; parts are elements or texts.
function make(tag, attributes, ...parts) {
    const [name, kind] = tag.split('.');
    const element = document.createElement(name);
    if (kind) element.className = kind;
    set(element, attributes);
    return add(element, ...parts);
}

function drawing(tag, attributes, ...parts) {
    const element = document.createElementNS(SVG, tag);
    set(element, attributes);
    return add(element, ...parts);
}

// data-tip is shown to readers, as the text of an element is.
function set(element, attributes) {
    for (const [name, value] of Object.entries(attributes || {})) {
        if (name === 'style') element.style.cssText = value;
        else if (value !== null && value !== undefined) element.setAttribute(name, name === 'data-tip' ? clean(value) : value);
    }
}

function add(element, ...parts) {
    for (const part of parts.flat(2)) {
        if (part === null || part === undefined || part === false) continue;
        element.append(part.nodeType ? part : clean(part));
    }
    return element;
}

function byId(id) {
    return document.getElementById(id);
}

function all(selector, from) {
    return [...(from || document).querySelectorAll(selector)];
}

// ---- marks: parts of drawings with a text ------------------------------------------------------

// Makes the line below a drawing in which the text of the selected mark is shown.
function readout(hint) {
    return make('output.readout', { 'aria-live': 'polite' }, hint || '');
}

function show(group, words) {
    let place = group;
    while (place && !place.classList.contains('readout')) place = place.nextElementSibling;
    if (!place) return;
    place.textContent = clean(words);
    place.classList.add('on');
}

// Makes the marks of a drawing one stop of the tab key.
function prepare(group) {
    all('[data-tip]', group).forEach((mark, i) => {
        mark.setAttribute('tabindex', i ? '-1' : '0');
        mark.setAttribute('role', 'img');
        mark.setAttribute('aria-label', mark.dataset.tip);
    });
    return group;
}

// Shows the text of a mark on hover, touch and focus. Arrow keys go from mark to mark.
function watch(group) {
    const point = event => {
        const mark = event.target.closest && event.target.closest('[data-tip]');
        if (mark && group.contains(mark)) show(group, mark.dataset.tip);
    };
    for (const kind of ['pointerover', 'pointerdown', 'focusin']) group.addEventListener(kind, point);
    group.addEventListener('keydown', event => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        const marks = all('[data-tip]', group), at = marks.indexOf(document.activeElement);
        if (!step || at < 0) return;
        const next = marks[Math.max(0, Math.min(marks.length - 1, at + step))];
        marks[at].setAttribute('tabindex', '-1');
        next.setAttribute('tabindex', '0');
        next.focus();
        event.preventDefault();
    });
    return prepare(group);
}

// ---- sections ----------------------------------------------------------------------------------

function lead(...words) {
    return make('p.lead', null, ...words);
}

function section(id, title, words, ...parts) {
    return make('section', { id }, make('h2', null, title), words && lead(words), ...parts);
}

// Makes a legend: [class, words] of each colour.
function legend(entries) {
    return make('p.legend', null, entries.map(([kind, words]) => make('span', null, kind && make('i.' + kind), words)));
}
