// Checks that JPEG images are rejected, with an error that names libjpeg, in builds without
// libjpeg. This test is built only without libjpeg.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/dataset_values.h"
#include "tutti/data/image.h"

namespace tutti::testing::without_jpeg_test {

TEST(WithoutJpeg, ErrorSuggestsBuildOption) {
  EXPECT_ERROR(decode_image(seed_bytes("rgb.jpg"), "here"), kUnimplemented, "here", "no JPEG",
               "libjpeg-dev", "TUTTI_JPEG");
  EXPECT_ERROR(encode_jpeg(Tensor::zeros({1, 1, 1}, DType::kUInt8)), kUnimplemented, "encode_jpeg",
               "libjpeg-dev");
}

}  // namespace tutti::testing::without_jpeg_test
