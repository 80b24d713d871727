// What the tests of checkpoints share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/test_folder.h"
#include "tests/support/thrown.h"
#include "tutti/tensor/tensor.h"

namespace tutti::checkpoint_test_util {

using thrown::empty_folder;
using thrown::expect_error;

}  // namespace tutti::checkpoint_test_util
