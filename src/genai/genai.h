// SPDX-License-Identifier: Apache-2.0
// genai.h - generation folders: a language model with KV caches, tokenizer and configuration, as
// written by onnxruntime-genai's model builder or Optimum. Opening, consistent inputs, generation,
// and one folder per device.
//
// Other modules use tsr_folder_* of tessera.h. This module uses only public calls to build models.
#ifndef TSR_GENAI_H
#define TSR_GENAI_H

#include "base/base.h"

#endif
