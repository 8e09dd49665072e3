// Applies operations, one after the other, to a crop.
#pragma once

#include "augment/convolve.h"
#include "augment/operations.h"
#include "augment/warp.h"

namespace custom_op {

// Not thread-safe; keeps its buffers for the next image.
class Augmenter {
 public:
  // Memory for a crop of `size` x `size`, to be written before apply().
  Canvas& start(int64_t size);
  // The crop after the operations.
  const Canvas& apply(const std::vector<Operation>& operations);

 private:
  void apply(const Operation& operation);

  Canvas current_, next_;
  GaussianBlur blur_;
  Warp warp_;
};

}  // namespace custom_op
