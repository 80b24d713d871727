// Real data: the image sets that the examples train on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/data/dataset.h"
#include "tutti/data/input_limits.h"

namespace tutti {

/// Reads an IDX file (plain or .gz; LeCun's format): the tensor of its type and shape. Throws
/// kNotFound naming the path, kDataLoss naming path, offset, expected and found for a wrong magic
/// number, a truncated or an overlong file, kResourceExhausted for a .gz beyond `limits`.
Tensor read_idx(const std::string& path, const InputLimits& limits = {});

/// Pictures and their classes.
struct ImageData {
  Tensor images;  // [n, height, width, channels] uint8
  Tensor labels;  // [n] uint8
};

/// The examples to train on, or those to test with.
enum class Split { kTrain, kTest };

/// train-images-idx3-ubyte(.gz) and friends: MNIST and Fashion-MNIST. `directory` empty:
/// $TUTTI_DATA_DIR, then /usr/share/datasets/fashion-mnist (Debian's package
/// dataset-fashion-mnist). kNotFound says where it looked and what to install.
ImageData read_mnist(const std::string& directory, Split split);

/// data_batch_1.bin ... data_batch_5.bin (train) or test_batch.bin of CIFAR-10's binary version, in
/// `directory` or its cifar-10-batches-bin, or in cifar-10-binary.tar.gz as it is downloaded, in
/// `directory` (which may also be the archive's own path). kNotFound names the file that is missing
/// and where it was looked for.
ImageData read_cifar10(const std::string& directory, Split split);
/// One such file: records of 1 label byte and 3072 image bytes (red, green, blue planes), turned
/// into [n, 32, 32, 3].
ImageData read_cifar10_file(const std::string& path);

/// Elements {features float32 [height, width, channels] in [0, 1], labels int64 []}. The pictures
/// are converted once, here: 4 bytes of memory per value.
Dataset image_dataset(const ImageData& data);
/// image_dataset(read_mnist(directory, split)).
Dataset load_mnist(const std::string& directory, Split split = Split::kTrain);

}  // namespace tutti
