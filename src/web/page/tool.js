// SPDX-License-Identifier: Apache-2.0
// tool.js - commands of Tessera as functions of the page: they run in a worker, which cancel() ends.

export class Cancelled extends Error {}

const WARM_NODES = 5000; // a larger model would take long

class Tool {
    #program = null; // all workers share its machine code, which the browser improves while it runs
    #worker = null;
    #warming = null; // the worker that runs a command unasked
    #warm = false;
    #calls = new Map();
    #calls_made = 0;
    #places = new WeakMap(); // of models without their weights

    #start() {
        this.#worker = new Worker('worker.js');
        this.#worker.onmessage = ({ data }) => {
            const call = this.#calls.get(data.id);
            if (data.line !== undefined) {
                call.hear(data.line);
                return;
            }
            this.#calls.delete(data.id);
            if (data.error === undefined) call.done(data);
            else call.fail(new Error(data.error));
        };
        this.#worker.onerror = event => this.#end(new Error(event.message || 'the worker cannot be started'));
    }

    #end(reason) {
        if (this.#worker) this.#worker.terminate();
        this.#worker = null;
        for (const call of this.#calls.values()) call.fail(reason);
        this.#calls.clear();
    }

    #send(message, hear) {
        if (!this.#worker) this.#start();
        const id = ++this.#calls_made, worker = this.#worker;
        return new Promise((done, fail) => {
            this.#calls.set(id, { done, fail, hear });
            this.#compiled().then(program => worker.postMessage({ id, program, ...message }), error => {
                this.#program = null;
                this.#calls.delete(id);
                fail(error);
            });
        });
    }

    #compiled() {
        this.#program = this.#program || WebAssembly.compileStreaming(fetch('tessera.wasm'));
        return this.#program;
    }

    // Runs a command. Returns code, stdout, stderr and the files that it wrote to "out".
    async run(args, files, hear) {
        this.#cool();
        const result = await this.#send({ args, files }, hear);
        for (const bytes of Object.values(files))
            if (this.#places.has(bytes)) result.stderr = Weights.atSource(this.#places.get(bytes), result.stderr);
        return result;
    }

    // Plans the model once for nobody, while the page is idle: the browser then has compiled the planner when the first plan is wanted.
    async warmUp({ name, files, nodes }) {
        if (this.#warm || nodes > WARM_NODES) return;
        this.#warm = true;
        const program = await this.#compiled();
        this.#warming = new Worker('worker.js');
        this.#warming.onmessage = ({ data }) => data.line === undefined && this.#cool();
        const args = ['plan', name, '--devices', 'h100:8', '--time', '1', '-o', 'out/' + name];
        this.#warming.postMessage({ id: 0, args, files, program });
    }

    #cool() {
        if (this.#warming) this.#warming.terminate();
        this.#warming = null;
    }

    // Reads a model without its weights. Returns what saved() needs to put them back.
    async open(blob) {
        const { bytes, left, places } = await this.#send({ blob });
        this.#places.set(bytes, places);
        return { blob, bytes, left, nodes: Weights.listNodes(bytes) };
    }

    cancel() {
        this.#end(new Cancelled());
    }
}

export const tool = new Tool();

// Returns a file of a changed model, with the weights of the opened one.
export function saved({ blob, left }, bytes) {
    return new Blob(Weights.putBack(bytes, left).map(piece => Array.isArray(piece) ? blob.slice(...piece) : piece));
}
