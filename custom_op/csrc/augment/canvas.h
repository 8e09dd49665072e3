// The crop while operations are applied to it.
#pragma once

#include <array>
#include <vector>

#include "types.h"

namespace custom_op {

// `size` x `size` pixels, 3 bytes each, without gaps.
class Canvas {
 public:
  void resize(int64_t size) {
    size_ = size;
    pixels_.resize(static_cast<size_t>(values()) + kPadding);
  }
  int64_t size() const { return size_; }
  int64_t values() const { return 3 * size_ * size_; }
  int64_t row_values() const { return 3 * size_; }
  uint8_t* row(int64_t y) { return pixels_.data() + y * row_values(); }
  const uint8_t* row(int64_t y) const { return pixels_.data() + y * row_values(); }

 private:
  // Loops over pixels may read and write some bytes past the last one.
  static constexpr size_t kPadding = 64;

  int64_t size_ = 0;
  std::vector<uint8_t> pixels_;
};

using Rgb = std::array<uint8_t, 3>;

}  // namespace custom_op
