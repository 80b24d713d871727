// Copies past the caches: every start and length, nothing beside them.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cpu/vectorized.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti {
namespace {

TEST(CopyPastCachesTest, CopiesEveryLengthToEveryPlaceAndNothingBesides) {
  constexpr std::byte kUntouched{0xA5};
  std::vector<std::byte> from(700);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (std::size_t begin = 0; begin < 66; ++begin) {
    for (const std::size_t count : {0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 500}) {
      std::vector<std::byte> to(from.size(), kUntouched);
      internal::copy_past_caches(to.data() + begin, from.data() + 3, count);
      internal::finish_copies();
      for (std::size_t i = 0; i < to.size(); ++i) {
        const bool is_copy = i >= begin && i < begin + count;
        ASSERT_EQ(to[i], is_copy ? from[3 + i - begin] : kUntouched)
            << "byte " << i << " of " << count << " from " << begin;
      }
    }
  }
}

}  // namespace
}  // namespace tutti
