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

/// Parses the bytes of a .npy file (versions 1.0 to 3.0). Types: f2, f4, f8, i4, i8, u1, b1; i1, i2
/// and u2 become int32, u4 becomes int64. Big-endian and Fortran order are converted. `source`
/// names the bytes in errors: kDataLoss with offset, expected and got; kUnimplemented for types
/// that no tensor holds.
Tensor parse_npy(std::string_view bytes, const std::string& source);
/// The bytes of a .npy file, version 1.0, as numpy.save writes them: little endian, C order.
std::string format_npy(const Tensor& tensor);

/// Arrays in the order of their file, with access by name.
class NamedTensors : public std::vector<std::pair<std::string, Tensor>> {
 public:
  using vector::at;
  using vector::vector;
  /// Throws kNotFound listing the names.
  const Tensor& at(std::string_view name) const;
  bool has(std::string_view name) const;
};

/// Options of read_npz() and parse_npz().
struct NpzOptions {
  /// The arrays to read, in this order. Default: all; members that are not arrays, and arrays of
  /// types that no tensor holds (texts, objects), are then left out with a warning.
  std::vector<std::string> names = {};
  InputLimits limits = {};
};

/// Parses the bytes of a .npz file: a zip file of .npy files, stored (numpy.savez) or deflated
/// (numpy.savez_compressed). Names are without ".npy". Errors of the arrays that are read as
/// parse_npy(), naming the member; kNotFound for a name that no member has, listing the names;
/// kDataLoss where a checksum is wrong or members overlap; kResourceExhausted beyond the limits,
/// the expansion being that of all members; kUnimplemented for zip64, encryption and other methods.
NamedTensors parse_npz(std::string_view bytes, const std::string& source,
                       const NpzOptions& options = {});
/// The bytes of a .npz file, as numpy.savez writes them. Throws kInvalidArgument for a name that is
/// empty or occurs twice, or 4 GiB or more.
std::string format_npz(const NamedTensors& tensors);

/// The same for files. Throw kNotFound or kUnavailable naming the function and the path.
Tensor read_npy(const std::string& path);
void write_npy(const std::string& path, const Tensor& tensor);
NamedTensors read_npz(const std::string& path, const NpzOptions& options = {});
void write_npz(const std::string& path, const NamedTensors& tensors);

}  // namespace tutti
