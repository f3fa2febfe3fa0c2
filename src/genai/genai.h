// SPDX-License-Identifier: Apache-2.0
// genai.h - generation folders: a language model with its caches, its tokenizer and a configuration, as onnxruntime-genai's
// builder or Optimum write them. What is in one, inputs that fit together, and one such folder for each device.
//
// Other rooms use tsr_folder_* of tessera.h. This room makes models by the public calls alone.
#ifndef TSR_GENAI_H
#define TSR_GENAI_H

#include "base/base.h"

#endif
