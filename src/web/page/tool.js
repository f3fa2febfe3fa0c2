// SPDX-License-Identifier: Apache-2.0
// tool.js - commands of Tessera as functions of the page: they run in a worker, which cancel() ends.

export class Cancelled extends Error {}

export class Tool {
    #worker = null;
    #calls = new Map();
    #calls_made = 0;

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
        const id = ++this.#calls_made;
        return new Promise((done, fail) => {
            this.#calls.set(id, { done, fail, hear });
            this.#worker.postMessage({ id, ...message });
        });
    }

    // Runs a command. Returns code, stdout, stderr and the files that it wrote to "out".
    run(args, files, hear) {
        return this.#send({ args, files }, hear);
    }

    // Reads a model without its weights. Returns what saved() needs to put them back.
    async open(blob) {
        const { bytes, left } = await this.#send({ blob });
        return { blob, bytes, left, nodes: Weights.listNodes(bytes) };
    }

    cancel() {
        this.#end(new Cancelled());
    }
}

// Returns a file of a changed model, with the weights of the opened one.
export function saved({ blob, left }, bytes) {
    return new Blob(Weights.putBack(bytes, left).map(piece => Array.isArray(piece) ? blob.slice(...piece) : piece));
}
