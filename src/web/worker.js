// SPDX-License-Identifier: Apache-2.0
// worker.js - runs commands of Tessera in a web worker, and reads models by ranges.
//
// Messages to the worker, each with a number `id` that its answer repeats:
//     { id, blob }           reads a model: answers { id, bytes, left, places }, see weights.js
//     { id, args, files, program }
//                            runs a command of the program, a WebAssembly.Module, in a folder with these files, name: bytes, and an empty
//                            folder "out": answers { id, code, stdout, stderr, files }; files are those in "out"
// While a command runs, the worker sends { id, line } when its progress changes: the command writes it to stderr, as lines that begin with
// \r. `{ id, error }` says that the worker itself failed, mostly for want of memory. To cancel, end the worker.
'use strict';

importScripts('weights.js', 'tessera.js');

// Runs a command in a process of its own: memory that it uses is free afterwards.
async function run(id, args, files, program) {
    const stdout = [], stderr = [];
    let code = null;
    const process = await Tessera({
        noInitialRun: true,
        thisProgram: 'tessera',
        print: line => stdout.push(line),
        printErr: line => {
            if (line.startsWith('\r')) postMessage({ id, line: line.slice(1) });
            else stderr.push(line);
        },
        instantiateWasm(imports, done) {
            WebAssembly.instantiate(program, imports).then(instance => done(instance, program));
            return {};
        },
        quit(status, reason) {
            code = status;
            throw reason;
        },
    });
    process.FS.mkdirTree('/model/out');
    process.FS.chdir('/model');
    for (const [name, bytes] of Object.entries(files)) process.FS.writeFile(name, bytes);
    try {
        const returned = process.callMain(args);
        if (code === null) code = returned;
    } catch (reason) {
        if (code === null) throw reason;
    }
    const written = {};
    for (const name of process.FS.readdir('/model/out'))
        if (name !== '.' && name !== '..' && process.FS.isFile(process.FS.stat('/model/out/' + name).mode))
            written[name] = process.FS.readFile('/model/out/' + name);
    return { code, stdout: stdout.join('\n'), stderr: stderr.join('\n'), files: written };
}

function readModel(blob) {
    const reader = new FileReaderSync();
    return Weights.leaveOut({ size: blob.size, read: (from, to) => new Uint8Array(reader.readAsArrayBuffer(blob.slice(from, to))) });
}

onmessage = async ({ data: { id, blob, args, files, program } }) => {
    try {
        postMessage({ id, ...(blob ? readModel(blob) : await run(id, args, files, program)) });
    } catch (error) {
        postMessage({ id, error: String(error && error.message || error) });
    }
};
