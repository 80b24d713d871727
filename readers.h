// Reading data from files, and preparing it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/data/augment.h"               // augmentation of pictures
#include "tutti/data/csv.h"                   // CSV files
#include "tutti/data/example.h"               // tf.train.Example
#include "tutti/data/fixed_length_records.h"  // files of equal records
#include "tutti/data/image.h"                 // PNG and JPEG pictures
#include "tutti/data/image_folder.h"          // folders of pictures
#include "tutti/data/list_files.h"            // files by pattern
#include "tutti/data/mixup.h"                 // mixup, cutmix
#include "tutti/data/npy.h"                   // numpy's .npy and .npz
#include "tutti/data/readers.h"               // MNIST, Fashion-MNIST, CIFAR-10
#include "tutti/data/resize_image.h"          // pictures of another size
#include "tutti/data/tar.h"                   // tar shards of samples
#include "tutti/data/tfrecord.h"              // TFRecord files
