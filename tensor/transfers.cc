// The log of transfers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/transfers.h"

namespace tutti {

std::string Transfer::to_string() const {
  return concat(from, " -> ", to, ": ", dtype, " ", shape, ", ", bytes, " bytes");
}

std::ostream& operator<<(std::ostream& out, const Transfer& transfer) {
  return out << transfer.to_string();
}

void TransferLog::clear() {
  transfers_.clear();
  bytes_ = 0;
}

void TransferLog::on_transfer(const Tensor& from, const Tensor& to, const SourceLocation& where) {
  transfers_.push_back(
      {from.device(), to.device(), from.shape(), from.dtype(), from.num_bytes(), where});
  bytes_ += from.num_bytes();
}

}  // namespace tutti
