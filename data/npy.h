// numpy's files: one array (.npy) or several by name (.npz).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/data/input_limits.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// Parses the bytes of a .npy file (versions 1.0 to 3.0). Types: <f4, <f8, <i4, <i8, |u1, |b1 and
/// the big-endian ones, which are converted, as is Fortran order. `source` names the bytes in
/// errors: kDataLoss with offset, expected and got; kUnimplemented for types that no tensor holds.
Tensor parse_npy(std::string_view bytes, const std::string& source);
/// The bytes of a .npy file, version 1.0, as numpy.save writes them: little endian, C order.
std::string format_npy(const Tensor& tensor);

/// Arrays in the order of their file.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// Parses the bytes of a .npz file: a zip file of .npy files, stored (numpy.savez) or deflated
/// (numpy.savez_compressed). Names are without ".npy". Errors as parse_npy(), naming the member;
/// kDataLoss where a checksum is wrong or members overlap; kResourceExhausted beyond `limits`, the
/// expansion being that of all members; kUnimplemented for zip64, encryption and other methods.
NamedTensors parse_npz(std::string_view bytes, const std::string& source,
                       const InputLimits& limits = {});
/// The bytes of a .npz file, as numpy.savez writes them. Throws kInvalidArgument for a name that is
/// empty or occurs twice, or 4 GiB or more.
std::string format_npz(const NamedTensors& tensors);

/// The same for files. Throw kNotFound or kUnavailable naming the path.
Tensor read_npy(const std::string& path);
void write_npy(const std::string& path, const Tensor& tensor);
NamedTensors read_npz(const std::string& path, const InputLimits& limits = {});
void write_npz(const std::string& path, const NamedTensors& tensors);

}  // namespace tutti
