// Reading and preprocessing of data files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/data/augment.h"    // image augmentation; mixup, cutmix
#include "tutti/data/csv.h"        // CSV files
#include "tutti/data/image.h"      // PNG and JPEG images, folders of images, resizing
#include "tutti/data/npy.h"        // numpy's .npy and .npz
#include "tutti/data/readers.h"    // MNIST, Fashion-MNIST, CIFAR-10
#include "tutti/data/records.h"    // TFRecord, tf.train.Example, fixed-size records, globs
#include "tutti/data/tar.h"        // tar shards of samples
#include "tutti/data/tokenizer.h"  // byte-pair tokenizers: GPT-2's files, tokenizer.json
