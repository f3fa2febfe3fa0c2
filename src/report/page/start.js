// SPDX-License-Identifier: Apache-2.0
// start.js - draws the document that the page holds.
'use strict';

draw(JSON.parse(byId('data').textContent), byId('report'));
