// SPDX-License-Identifier: Apache-2.0
// served.h - a partition whose ranks run in another program, tessera-ranks, which this process
// starts.
//
// For a host process that must not be forked: it has threads, locks and perhaps a GPU driver that
// do not survive a fork. The program starts fresh, so its own children (job_children.c) are safe.
// Both sides exchange notes (children.h) over one socket, which the program has as descriptor
// SERVED_SOCKET:
//
//   this process                    tessera-ranks FOLDER ENGINE THREADS
//   (starts it)                     opens ONNX Runtime and the ranks, then sends READY
//   START + full inputs       -->   makes the run, then sends START + its full outputs
//   (closes the socket)             reads the end of the stream, ends its ranks and itself
//
// After a failure the note has the status, and diagnostics are sent instead of tensors.
#ifndef TSR_SERVED_H
#define TSR_SERVED_H

#include "runtime/children.h"

#define SERVED_PROGRAM "tessera-ranks"
#define SERVED_SOCKET  3 // the program's end of the socket

#endif
