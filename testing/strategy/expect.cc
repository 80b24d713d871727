// How a check of the strategy suite says what it expected and what came.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/strategy/expect.h"

namespace tutti::conformance {
namespace {

constexpr std::size_t kShown = 16;

std::string text_of(const Numbers& numbers) {
  const std::size_t shown = std::min(kShown, numbers.size());
  const Numbers first(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(shown));
  return concat("[", join(first), numbers.size() > shown ? ", ..." : "", "]");
}

}  // namespace

void expect_equal(std::string_view what, const Numbers& got, const Numbers& expected) {
  if (got == expected) return;
  throw CheckFailed(concat(what, ": expected ", text_of(expected), ", got ", text_of(got)));
}

void expect_equal(std::string_view what, std::string_view got, std::string_view expected) {
  if (got == expected) return;
  throw CheckFailed(concat(what, ": expected ", expected, ", got ", got));
}

void expect(bool condition, std::string_view what) {
  if (!condition) throw CheckFailed(std::string(what));
}

void expect_error(std::string_view what, ErrorCode code, const std::vector<std::string>& parts,
                  const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string said = concat(to_string(error.code()), ": ", error.message());
    if (error.code() != code) {
      throw CheckFailed(concat(what, ": expected ", to_string(code), ", got ", said));
    }
    for (const std::string& part : parts) {
      if (error.message().find(part) != std::string::npos) continue;
      throw CheckFailed(concat(what, ": expected a message with '", part, "', got ", said));
    }
    return;
  }
  throw CheckFailed(concat(what, ": expected ", to_string(code), ", got no error"));
}

Numbers numbers(const Tensor& tensor) { return tensor.to_doubles(); }

Numbers numbers(const PerReplica<Tensor>& tensors) {
  Numbers all;
  for (const Tensor& tensor : tensors) {
    for (const double value : tensor.to_doubles()) all.push_back(value);
  }
  return all;
}

Numbers components(const Variable& variable) {
  return numbers(PerReplica<Tensor>(variable.storage().local_components()));
}

Numbers copies(double x, std::size_t n) { return Numbers(n, x); }

}  // namespace tutti::conformance
