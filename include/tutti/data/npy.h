// NumPy files: one array (.npy), or several named arrays (.npz).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/data/input_limits.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// Parses the bytes of a .npy file (versions 1.0 to 3.0). Types: f2, f4, f8, i4, i8, u1, b1; i1, i2
/// and u2 become int32, u4 becomes int64. Big-endian data and Fortran order are converted. `source`
/// names the bytes in errors. Throws kDataLoss, with the offset, the expected content and the
/// actual content, for invalid bytes, and kUnimplemented for types that tensors do not support.
Tensor parse_npy(std::string_view bytes, const std::string& source);
/// Returns a .npy file, version 1.0, as numpy.save writes it: little-endian, C order.
std::string format_npy(const Tensor& tensor);

/// Arrays in file order, with access by name.
class NamedTensors : public std::vector<std::pair<std::string, Tensor>> {
 public:
  using vector::at;
  using vector::vector;
  /// Returns the array with this name. Throws kNotFound, listing the existing names, if there is
  /// none.
  const Tensor& at(std::string_view name) const;
  bool has(std::string_view name) const;
};

/// Options for read_npz() and parse_npz().
struct NpzOptions {
  /// Arrays to read, in this order. Default: all; members that are not arrays, and arrays of types
  /// that tensors do not support (strings, objects), are then skipped with a warning.
  std::vector<std::string> names = {};
  InputLimits limits = {};
};

/// Parses the bytes of a .npz file: a zip file of .npy files, stored (numpy.savez) or deflated
/// (numpy.savez_compressed). Names do not include ".npy". Throws parse_npy()'s errors, naming the
/// member; kNotFound, listing the names, for an unknown name; kDataLoss for a wrong checksum or
/// overlapping members; kResourceExhausted beyond the limits (max_expansion applies to all members
/// together); kUnimplemented for zip64, encryption and other compression methods.
NamedTensors parse_npz(std::string_view bytes, const std::string& source,
                       const NpzOptions& options = {});
/// Returns the bytes of a .npz file, as numpy.savez writes them. Throws kInvalidArgument for a name
/// that is empty, longer than 1000 bytes or repeated, and for more than 4 GiB or 65534 arrays.
std::string format_npz(const NamedTensors& tensors);

/// Same as the functions above, but for files. Throw kNotFound or kUnavailable, naming the path.
Tensor read_npy(const std::string& path);
void write_npy(const std::string& path, const Tensor& tensor);
NamedTensors read_npz(const std::string& path, const NpzOptions& options = {});
void write_npz(const std::string& path, const NamedTensors& tensors);

}  // namespace tutti
