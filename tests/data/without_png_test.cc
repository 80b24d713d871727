// Tests that builds without libpng reject PNG images with an error that names libpng. This test is
// built only without libpng.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/dataset_values.h"
#include "tutti/data/image.h"

namespace tutti::testing::without_png_test {

TEST(WithoutPng, ErrorSuggestsBuildOption) {
  EXPECT_ERROR(decode_image(seed_bytes("rgb.png"), "here"), kUnimplemented, "here", "no PNG",
               "libpng-dev", "TUTTI_PNG");
  EXPECT_ERROR(encode_png(Tensor::zeros({1, 1, 1}, DType::kUInt8)), kUnimplemented, "encode_png",
               "libpng-dev");
}

}  // namespace tutti::testing::without_png_test
