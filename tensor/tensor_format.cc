// Tensors as text, for people.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tutti/tensor/tensor.h"

namespace tutti {
namespace {

constexpr std::int64_t kMaxPrinted = 32;

void append_element(std::ostringstream& out, bool value) { out << (value ? "true" : "false"); }
void append_element(std::ostringstream& out, std::uint8_t value) { out << int{value}; }
template <class T>
void append_element(std::ostringstream& out, T value) {
  out << value;
}

/// Writes the elements of `shape` from `axis` on as nested brackets, until kMaxPrinted are out.
template <class T>
class NestedWriter {
 public:
  NestedWriter(std::ostringstream& out, const Shape& shape, std::span<const T> elements)
      : out_(out), shape_(shape), elements_(elements) {}

  void write(int axis) {
    if (axis == shape_.rank()) {
      append_element(out_, elements_[static_cast<std::size_t>(next_++)]);
      return;
    }
    out_ << "[";
    for (std::int64_t i = 0; i < shape_.dim(axis); ++i) {
      if (i > 0) out_ << ", ";
      if (next_ == kMaxPrinted) {
        out_ << "...";
        break;
      }
      write(axis + 1);
    }
    out_ << "]";
  }

 private:
  std::ostringstream& out_;
  const Shape& shape_;
  std::span<const T> elements_;
  std::int64_t next_ = 0;
};

}  // namespace

std::string Tensor::to_string() const {
  if (!defined()) return "Tensor(undefined)";
  std::ostringstream out;
  out << "Tensor(shape=" << shape() << ", dtype=" << dtype() << ", device=" << device() << ", ";
  const Tensor on_host = to(Device{});
  visit_dtype(dtype(),
              [&]<class T>() { NestedWriter<T>(out, shape(), on_host.host_span<T>()).write(0); });
  out << ")";
  return std::move(out).str();
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  return out << tensor.to_string();
}

}  // namespace tutti
