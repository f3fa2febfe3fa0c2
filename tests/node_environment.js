// SPDX-License-Identifier: Apache-2.0
// node_environment.js - gives test programs that run in Node its environment: CASE, TMPDIR, CMOCKA_MESSAGE_OUTPUT. Emscripten's ENV is
// there if the program reads it.
Module.preRun = () => typeof ENV !== 'undefined' && Object.assign(ENV, process.env);
