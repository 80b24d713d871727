// Readers of the image data sets that the examples train on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/data/dataset.h"
#include "tutti/data/input_limits.h"

namespace tutti {

/// Reads an IDX file (LeCun's format, plain or .gz) as a tensor of its type and shape. Throws
/// kNotFound, naming the path; kDataLoss, naming the path and the offset, for a wrong magic number
/// or a file of the wrong length; and kResourceExhausted for a .gz file beyond `limits`.
Tensor read_idx(const std::string& path, const InputLimits& limits = {});

/// Images and their classes.
struct ImageData {
  Tensor images;  // [n, height, width, channels] uint8
  Tensor labels;  // [n] uint8
};

/// Set of examples to read: training or test.
enum class Split { kTrain, kTest };

/// Reads MNIST or Fashion-MNIST: train-images-idx3-ubyte(.gz) and so on. If `directory` is empty,
/// searches $TUTTI_DATA_DIR, then /usr/share/datasets/fashion-mnist (Debian's package
/// dataset-fashion-mnist). Throws kNotFound, naming the folders searched and the package to
/// install.
ImageData read_mnist(const std::string& directory, Split split);

/// Reads the binary version of CIFAR-10: data_batch_1.bin ... data_batch_5.bin (train) or
/// test_batch.bin. Searches `directory`, its subfolder cifar-10-batches-bin, and the downloaded
/// archive cifar-10-binary.tar.gz in `directory`. `directory` may also be the path of the archive.
/// Throws kNotFound, naming the missing file and the searched paths.
ImageData read_cifar10(const std::string& directory, Split split);
/// Reads one file of the binary version of CIFAR-10: records of 1 label byte and 3072 image bytes
/// (red, green, blue planes), converted to [n, 32, 32, 3].
ImageData read_cifar10_file(const std::string& path);

/// Returns elements {features float32 [height, width, channels] in [0, 1], labels int64 []}.
/// Converts all images during the call and takes 4 bytes of memory per value.
Dataset image_dataset(const ImageData& data);
/// Returns image_dataset(read_mnist(directory, split)).
Dataset load_mnist(const std::string& directory, Split split = Split::kTrain);

}  // namespace tutti
