// What to say about a name that nothing has.
// SPDX-License-Identifier: Apache-2.0
#include "core/names.h"

#include <numeric>

#include "tutti/core/text.h"

namespace tutti::internal {
namespace {

/// Letters to insert, remove, replace or swap with the next one (Damerau, 1964), so that `a`
/// becomes `b`.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    last = row;
  }
  return last.back();
}

}  // namespace

std::string choices(const std::vector<std::string>& names, std::string_view given) {
  std::string text = join(names);
  // Of a short name two other letters make another word.
  std::size_t least = given.size() > 4 ? 3 : 2;
  std::string_view nearest;
  for (const std::string& name : names) {
    std::size_t apart = distance(given, name);
    // A name that breaks off: "miror" of mirrored.
    if (given.size() > 4)
      apart = std::min(apart, 1 + distance(given, std::string_view(name).substr(0, given.size())));
    if (apart >= least) continue;
    least = apart;
    nearest = name;
  }
  return nearest.empty() || given.empty() ? text : concat(text, "; did you mean '", nearest, "'?");
}

}  // namespace tutti::internal
