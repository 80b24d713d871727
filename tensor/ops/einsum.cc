// Einstein summation: one matrix product for each operand after the first.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/einsum.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "tensor/op_checks.h"
#include "tutti/tensor/ops/creation.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/matmul.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

using namespace internal;

// The axes of "..." are named '0', '1', ... here; the last one is '0'.

/// A tensor with named axes.
struct Named {
  Tensor tensor;
  std::string axes;

  std::int64_t length(char axis) const {
    return tensor.shape().dim(static_cast<int>(axes.find(axis)));
  }
};

class Einsum {
 public:
  Einsum(std::string_view equation, std::span<const Tensor> operands, const SourceLocation& where)
      : equation_(equation), where_(where) {
    std::erase_if(equation_, [](char c) { return c == ' '; });
    const std::size_t arrow = equation_.find("->");
    const std::vector<std::string> inputs = split_text(equation_.substr(0, arrow));
    if (operands.empty() || inputs.size() != operands.size()) {
      fail_here("expected one operand per term (", inputs.size(), " in total), got ",
                operands.size());
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) add_operand(inputs[i], operands[i]);
    broadcast_ellipses();
    output_ = arrow == std::string::npos ? implied_output()
                                         : named_axes(equation_.substr(arrow + 2), num_ellipsis_);
    check_output();
  }

  Tensor result() {
    Named product = operands_[0];
    for (std::size_t i = 1; i < operands_.size(); ++i) {
      std::string needed = output_;
      for (std::size_t later = i + 1; later < operands_.size(); ++later) {
        needed += operands_[later].axes;
      }
      product = multiply_pair(product, operands_[i], needed);
    }
    product = without(product, output_);
    return arranged(product, output_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail_here(const Parts&... parts) const {
    fail(ErrorCode::kInvalidArgument, who("einsum", where_), ": \"", equation_, "\": ", parts...);
  }

  Operand at(const Tensor& tensor) const { return {tensor, where_}; }

  static std::vector<std::string> split_text(const std::string& text) {
    std::vector<std::string> parts(1);
    for (const char c : text) {
      if (c == ',') {
        parts.emplace_back();
      } else {
        parts.back() += c;
      }
    }
    return parts;
  }

  /// Returns the axes of a term as one character each: letters, and digits for the `ellipsis` axes
  /// of "...".
  std::string named_axes(const std::string& term, int ellipsis) const {
    std::string axes;
    bool has_ellipsis = false;
    for (std::size_t i = 0; i < term.size(); ++i) {
      if (term.compare(i, 3, "...") == 0 && !has_ellipsis) {
        has_ellipsis = true;
        for (int axis = ellipsis - 1; axis >= 0; --axis) axes += static_cast<char>('0' + axis);
        i += 2;
      } else if (std::isalpha(static_cast<unsigned char>(term[i]))) {
        axes += term[i];
      } else {
        fail_here("expected letters, \"...\", \",\" and \"->\", got '", term, "'");
      }
    }
    return axes;
  }

  void add_operand(const std::string& term, const Tensor& tensor) {
    const Operand operand = at(tensor);
    defined(OpId::kMatMul, operand);
    require_floating(OpId::kMatMul, operand);
    const auto letters = std::ranges::count_if(term, [](char c) { return c != '.'; });
    const int ellipsis = tensor.rank() - static_cast<int>(letters);
    const bool may_have_more = term.find("...") != std::string::npos;
    if (ellipsis < 0 || (ellipsis > 0 && !may_have_more)) {
      fail_here("expected rank ", letters, may_have_more ? " or more" : "", " for '", term,
                "', got shape ", tensor.shape());
    }
    num_ellipsis_ = std::max(num_ellipsis_, ellipsis);
    Named named{tensor, named_axes(term, ellipsis)};
    for (std::size_t i = 0; i < named.axes.size(); ++i) {
      if (std::isdigit(static_cast<unsigned char>(named.axes[i]))) continue;
      const std::int64_t length = tensor.shape().dim(static_cast<int>(i));
      const auto [known, is_new] = lengths_.emplace(named.axes[i], length);
      if (is_new || known->second == length) continue;
      fail_here("axes of '", named.axes[i], "' differ in length; expected ", known->second,
                ", got ", length, " in shape ", tensor.shape());
    }
    operands_.push_back(diagonals(std::move(named)));
  }

  /// Merges axes with the same name into one axis, which keeps only the diagonal: the elements
  /// whose indices on these axes are equal.
  Named diagonals(Named x) const {
    for (std::size_t i = 0; i < x.axes.size(); ++i) {
      const std::size_t twin = x.axes.find(x.axes[i], i + 1);
      if (twin == std::string::npos) continue;
      const std::int64_t length = x.tensor.shape().dim(static_cast<int>(i));
      Shape pair = x.tensor.shape();
      for (int axis = 0; axis < pair.rank(); ++axis) {
        if (axis != static_cast<int>(i) && axis != static_cast<int>(twin)) {
          pair = pair.with_dim(axis, 1);
        }
      }
      const Tensor identity =
          reshape(eye(length, length, x.tensor.dtype(), x.tensor.device()), pair);
      const Tensor diagonal = where(at(cast(identity, DType::kBool)), at(x.tensor), 0.0);
      x.tensor = reduce_sum(at(diagonal), static_cast<int>(twin));
      x.axes.erase(twin, 1);
      --i;  // revisits i, because its name may occur a third time
    }
    return x;
  }

  /// Broadcasts the axes of "..." to common lengths.
  void broadcast_ellipses() {
    for (int axis = 0; axis < num_ellipsis_; ++axis) {
      const char name = static_cast<char>('0' + axis);
      std::int64_t length = 1;
      for (const Named& x : operands_) {
        if (x.axes.find(name) == std::string::npos || x.length(name) == 1) continue;
        if (length != 1 && x.length(name) != length) {
          fail_here("axes of \"...\" do not broadcast; expected equal lengths or 1, got ", length,
                    " and ", x.length(name));
        }
        length = x.length(name);
      }
      for (Named& x : operands_) {
        const std::size_t place = x.axes.find(name);
        if (place == std::string::npos || x.length(name) == length) continue;
        const Shape shape = x.tensor.shape().with_dim(static_cast<int>(place), length);
        x.tensor = broadcast_to(at(x.tensor), shape);
      }
    }
  }

  std::string implied_output() const {
    std::string letters, digits;
    for (const auto& [letter, length] : lengths_) {
      const auto inputs = equation_.substr(0, equation_.find("->"));
      if (std::ranges::count(inputs, letter) == 1) letters += letter;
    }
    for (int axis = num_ellipsis_ - 1; axis >= 0; --axis) digits += static_cast<char>('0' + axis);
    return digits + letters;
  }

  void check_output() const {
    for (const char axis : output_) {
      const bool is_known =
          std::isdigit(static_cast<unsigned char>(axis)) || lengths_.contains(axis);
      if (!is_known) fail_here("'", axis, "' of the result is not an axis of an operand");
      if (std::ranges::count(output_, axis) > 1) {
        fail_here("'", axis, "' occurs more than once in the result");
      }
    }
  }

  /// Returns x, summed over the axes that are not in `kept`.
  Named without(const Named& x, const std::string& kept) const {
    ReduceOptions options;
    std::string axes;
    for (std::size_t i = 0; i < x.axes.size(); ++i) {
      if (kept.find(x.axes[i]) == std::string::npos) {
        options.axes.push_back(static_cast<int>(i));
      } else {
        axes += x.axes[i];
      }
    }
    return options.axes.empty() ? x : Named{reduce_sum(at(x.tensor), options), axes};
  }

  /// Returns x with its axes in the order of `axes`.
  Tensor arranged(const Named& x, const std::string& axes) const {
    if (x.axes == axes) return x.tensor;
    std::vector<int> order;
    for (const char axis : axes) order.push_back(static_cast<int>(x.axes.find(axis)));
    return transpose(at(x.tensor), order);
  }

  Tensor as_matrices(const Named& x, const std::string& batch, const std::string& rows,
                     const std::string& columns) const {
    const auto size = [&x](const std::string& axes) {
      return std::accumulate(axes.begin(), axes.end(), std::int64_t{1},
                             [&x](auto product, char axis) { return product * x.length(axis); });
    };
    const Tensor in_order = arranged(x, batch + rows + columns);
    return reshape(at(in_order), Shape{size(batch), size(rows), size(columns)});
  }

  /// Returns the product of a and b, summed over the axes that are not in `needed`.
  Named multiply_pair(Named a, Named b, const std::string& needed) const {
    a = without(a, needed + b.axes);
    b = without(b, needed + a.axes);
    std::string batch, summed, a_alone, b_alone;
    for (const char axis : a.axes) {
      const bool is_shared = b.axes.find(axis) != std::string::npos;
      const bool is_needed = needed.find(axis) != std::string::npos;
      (is_shared ? is_needed ? batch : summed : a_alone) += axis;
    }
    for (const char axis : b.axes) {
      if (a.axes.find(axis) == std::string::npos) b_alone += axis;
    }
    const Tensor product = matmul(at(as_matrices(a, batch, a_alone, summed)),
                                  at(as_matrices(b, batch, summed, b_alone)));
    std::vector<std::int64_t> dims;
    for (const char axis : batch + a_alone) dims.push_back(a.length(axis));
    for (const char axis : b_alone) dims.push_back(b.length(axis));
    return {reshape(at(product), Shape(dims)), batch + a_alone + b_alone};
  }

  std::string equation_;
  SourceLocation where_;
  std::vector<Named> operands_;
  std::map<char, std::int64_t> lengths_;  // lengths of the axes named by letters
  int num_ellipsis_ = 0;
  std::string output_;
};

}  // namespace

Tensor einsum(std::string_view equation, std::span<const Tensor> operands, SourceLocation where) {
  return Einsum(equation, operands, where).result();
}

}  // namespace tutti
