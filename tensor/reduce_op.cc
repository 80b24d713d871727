// Names of reductions.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/reduce_op.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr ReduceOp kAllReduceOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin,
                                      ReduceOp::kMax, ReduceOp::kProduct};

}  // namespace

std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "SUM";
    case ReduceOp::kMean:
      return "MEAN";
    case ReduceOp::kMin:
      return "MIN";
    case ReduceOp::kMax:
      return "MAX";
    case ReduceOp::kProduct:
      return "PRODUCT";
  }
  fail(ErrorCode::kInternal, "ReduceOp: no such value: ", static_cast<int>(op));
}

ReduceOp parse_reduce_op(std::string_view text) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  for (ReduceOp op : kAllReduceOps) {
    if (upper == to_string(op)) return op;
  }
  fail(ErrorCode::kInvalidArgument, "parse_reduce_op: unknown reduction; expected one of ",
       join(kAllReduceOps), ", got '", text, "'");
}

std::ostream& operator<<(std::ostream& out, ReduceOp op) { return out << to_string(op); }

}  // namespace tutti
