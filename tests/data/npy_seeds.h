// The arrays in tests/fuzz/seeds/npy, written by Python's struct and zipfile.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "tutti/data/npy.h"

namespace tutti::npy_seeds {

/// The .npz file `name` holds [1 .. 6] as "a" and a second array in Fortran order.
inline void expect_arrays_of_python(const std::string& name) {
  using ::testing::ElementsAre;
  const NamedTensors read = read_npz(std::string(TUTTI_FUZZ_SEEDS) + "/npy/" + name);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].first, "a");
  EXPECT_THAT(read[0].second.to_doubles(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(read[1].second.shape(), (Shape{2, 2}));
  EXPECT_THAT(read[1].second.to_doubles(), ElementsAre(1, 3, 2, 4));  // in Fortran order
}

}  // namespace tutti::npy_seeds
